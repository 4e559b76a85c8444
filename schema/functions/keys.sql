-- Unique keys: at most one waiting task for each type and key. Ordering keys: tasks of one type and
-- key run one after the other.
--
-- enable_seqscan is off because a session keeps its plans, also those made when the tables were
-- empty; jit, as such a plan is said to cost enough to be compiled each time.

-- Requests a new head for an ordering key, when this commits. It returns true, so that a condition
-- can call it.
CREATE OR REPLACE FUNCTION outbox.mark_headless(of_type text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES (of_type, key);
  RETURN true;
END
$$;

-- Requests a new head for the ordering key that a task leaves.
CREATE OR REPLACE FUNCTION outbox.task_left() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  INSERT INTO outbox.headless_key (task_type, ordering_key)
    VALUES (OLD.task_type, OLD.ordering_key);
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_left() FROM PUBLIC;

-- Returns the unique key to insert under: $payload stands for the payload's own. Equal jsonb gives
-- the same key: its text has one form for all but numbers, where 1.50 equals 1.5. So zeros at the
-- end of fractions go, but not those in strings. Backslashes mean the same in E'' strings whatever
-- standard_conforming_strings is.
CREATE OR REPLACE FUNCTION outbox.resolve_key(given text, payload jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  canonical text;
  resolved  text;
BEGIN
  IF given NOT LIKE '$payload%' THEN
    RETURN given;
  END IF;
  canonical := payload::text;
  IF canonical ~ '[.][0-9]*0' THEN
    canonical := regexp_replace(canonical,
      E'("(?:[^"\\\\]|\\\\.)*")|([.][0-9]*[1-9])0+(?![0-9])|[.]0+(?![0-9])', E'\\1\\2', 'g');
  END IF;
  resolved := '$payload:' || encode(sha256(convert_to(canonical, 'UTF8')), 'hex');
  IF given NOT IN ('$payload', resolved) THEN
    RAISE EXCEPTION
      'a unique key must not begin with $payload, which stands for the key of the payload'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN resolved;
END
$$;

-- Returns whether the task that a unique key names is waiting, running or gone. A waiting task is
-- locked, so that no claim can start it before this transaction ends; a change of its state or time
-- is not in the way. A claim's lock is never waited for. A task that was canceled while it ran is
-- about to be removed, and counts as gone. A task that cannot be locked is in a claim, or was
-- written back by a claim in this very moment: then the second pass finds its new row.
CREATE OR REPLACE FUNCTION outbox.lock_waiting(holder bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  found_state text;
BEGIN
  FOR pass IN 1..2 LOOP
    SELECT t.state INTO found_state FROM outbox.task t WHERE t.task_id = holder;
    IF NOT FOUND THEN
      RETURN 'gone';
    END IF;
    EXIT WHEN found_state = 'leased';
    PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.state <> 'leased'
      FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
      PERFORM FROM outbox.cancel c WHERE c.task_id = holder;
      RETURN CASE WHEN FOUND THEN 'gone' ELSE 'waiting' END;
    END IF;
  END LOOP;
  RETURN 'running';
END
$$;

-- Gives a new task its unique key, unless a task has the key that waits, or runs and keeps it.
CREATE OR REPLACE FUNCTION outbox.take_key(new_type text, new_key text, new_id bigint)
  RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
DECLARE
  holder bigint;
BEGIN
  LOOP
    SELECT k.task_id INTO holder FROM outbox.unique_key k WHERE k.task_type = new_type
      AND k.key = new_key FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES (new_type, new_key, new_id)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN true;
    END IF;
  END LOOP;
  CASE outbox.lock_waiting(holder)
    WHEN 'waiting' THEN
      RETURN false;
    WHEN 'running' THEN
      PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.unique_until_done;
      IF FOUND THEN
        RETURN false;
      END IF;
    ELSE -- gone
  END CASE;
  UPDATE outbox.unique_key k SET task_id = new_id WHERE k.task_type = new_type AND k.key = new_key;
  RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.take_key(text, text, bigint) FROM PUBLIC;
