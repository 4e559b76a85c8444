-- Unique keys: at most one waiting task for each type and key. Ordering keys: tasks of one type and
-- key run one after the other. Group keys: of a type and key so many tasks run at once.
--
-- enable_seqscan is off because a session keeps its plans, also those made when the tables were
-- empty; jit, as such a plan is said to cost enough to be compiled each time.

-- Requests a promotion for an ordering key or, if that is NULL, for a group key, when this commits. It
-- returns true, so that a condition can call it.
CREATE OR REPLACE FUNCTION outbox.request_promotion(of_type text, ordering_key text, group_key text)
  RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF $2 IS NOT NULL THEN
    INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES ($1, $2);
  ELSE
    INSERT INTO outbox.place_request (task_type, group_key) VALUES ($1, $3);
  END IF;
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

-- Keeps the rules of group keys in an UPDATE of the state or the time: without a place a task is not
-- ready, but waits for one; only what is due waits; what is neither ready nor leased has no place.
-- task_changed requests the promotions, as it is told to until the transaction ends.
CREATE OR REPLACE FUNCTION outbox.task_grouped() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF NEW.state = 'ready' AND NEW.group_place IS NULL THEN
    NEW.state := 'waiting';
  ELSIF NEW.state = 'waiting' AND NEW.run_at > now() THEN
    NEW.state := 'scheduled';
  END IF;
  IF NEW.state NOT IN ('ready', 'leased') THEN
    NEW.group_place := NULL;
    PERFORM set_config('outbox_order.grouped', 'true', true);
  END IF;
  RETURN NEW;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_grouped() FROM PUBLIC;

-- Returns what a waiting task waits for: the head of its ordering key, or the tasks that have places of
-- its group key, of so many places, and how many tasks of its key wait before it, 1,000 at most. Another
-- task waits for nothing. It has its owner's rights, as its callers may not read keys, and returns none.
CREATE OR REPLACE FUNCTION outbox.waits_for(
  of_id bigint, OUT grouped boolean, OUT holders bigint[], OUT places integer, OUT ahead bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
  SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
DECLARE
  w record;
BEGIN
  SELECT t.task_type, t.ordering_key, t.group_key, t.priority, t.run_at INTO w FROM outbox.task t
   WHERE t.task_id = of_id AND t.state NOT IN ('ready', 'scheduled', 'leased');
  grouped := w.group_key IS NOT NULL;
  IF grouped THEN
    places := COALESCE((SELECT l.max_running_per_key FROM outbox.task_type l
                         WHERE l.task_type = w.task_type), 1);
    holders := ARRAY(SELECT t.task_id FROM outbox.task t WHERE t.task_type = w.task_type
       AND t.group_key = w.group_key AND t.group_place IS NOT NULL ORDER BY t.group_place);
    ahead := (SELECT count(*) FROM (SELECT FROM outbox.task t WHERE t.task_type = w.task_type
       AND t.group_key = w.group_key AND t.state = 'waiting'
       AND (t.priority, t.run_at, t.task_id) < (w.priority, w.run_at, of_id)
       ORDER BY t.task_type, t.group_key, t.priority, t.run_at, t.task_id LIMIT 1000) AS n);
  ELSE
    holders := ARRAY(SELECT t.task_id FROM outbox.task t WHERE t.task_type = w.task_type
       AND t.ordering_key = w.ordering_key AND t.state <> 'waiting');
    ahead := (SELECT count(*) FROM (SELECT FROM outbox.task t WHERE t.task_type = w.task_type
       AND t.ordering_key = w.ordering_key AND t.state = 'waiting' AND t.task_id < of_id
       ORDER BY t.task_type, t.ordering_key, t.task_id LIMIT 1000) AS n);
  END IF;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.waits_for(bigint) FROM PUBLIC;

-- Gives the free places of up to so many group keys, from a request on, to the tasks that wait, and
-- returns 0 if it did nothing. The most urgent goes first, then the one that has been due longest. One
-- that another transaction holds is passed over. The caller has locked outbox.promote_lock. A type has as
-- many places for each key as its handler's MaxRunningPerKey, or one. While more than that are taken, as
-- the limit was lowered, none is given. Of many keys each gets a part. A key that has a free place and
-- waiting tasks after that gets a new request, behind those of others.
CREATE OR REPLACE FUNCTION outbox.promote_places(first bigint, up_to integer) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  did bigint;
BEGIN
  WITH c AS MATERIALIZED (
    SELECT r.ctid FROM outbox.place_request r WHERE r.place_request_id >= first
     ORDER BY r.place_request_id LIMIT up_to FOR UPDATE SKIP LOCKED),
  gone AS (
    DELETE FROM outbox.place_request r WHERE r.ctid = ANY (ARRAY(SELECT c.ctid FROM c))
    RETURNING r.task_type, r.group_key),
  keys AS MATERIALIZED (
    SELECT k.task_type, k.group_key, COALESCE(l.max_running_per_key, 1) AS places,
           GREATEST(up_to / count(*) OVER (), 1) AS part,
           ARRAY(SELECT t.group_place FROM outbox.task t WHERE t.task_type = k.task_type
              AND t.group_key = k.group_key AND t.group_place IS NOT NULL) AS taken
      FROM (SELECT DISTINCT gone.task_type, gone.group_key FROM gone) AS k
      LEFT JOIN outbox.task_type l ON l.task_type = k.task_type),
  given AS MATERIALIZED (
    SELECT k.*, ARRAY(
      SELECT t.task_id FROM outbox.task t WHERE t.task_type = k.task_type
         AND t.group_key = k.group_key AND t.state = 'waiting'
       ORDER BY t.task_type, t.group_key, t.priority, t.run_at, t.task_id
       LIMIT LEAST(GREATEST(k.places - cardinality(k.taken), 0), k.part)
         FOR NO KEY UPDATE SKIP LOCKED) AS ids
      FROM keys k),
  promoted AS (
    UPDATE outbox.task t SET state = 'ready', group_place = n.place
      FROM given g CROSS JOIN LATERAL unnest(g.ids, ARRAY(
        SELECT p FROM generate_series(1, g.places) AS p WHERE p <> ALL (g.taken))) AS n (id, place)
     WHERE t.task_id = n.id
    RETURNING 1),
  again AS (
    INSERT INTO outbox.place_request (task_type, group_key)
    SELECT g.task_type, g.group_key FROM given g
     WHERE cardinality(g.taken) + cardinality(g.ids) < g.places
       AND EXISTS (SELECT FROM outbox.task t WHERE t.task_type = g.task_type
                      AND t.group_key = g.group_key AND t.state = 'waiting' AND t.task_id <> ALL (g.ids))
    RETURNING 1)
  SELECT (SELECT count(*) FROM promoted) + (SELECT count(*) FROM gone)
       - (SELECT count(*) FROM again) INTO did;
  RETURN did;
END
$$;

-- Returns the unique key to insert under: $payload stands for the payload's own. Equal jsonb gives
-- the same key: its text has one form for all but numbers, where 1.50 equals 1.5. So zeros at the
-- end of fractions go, but not those in strings. Backslashes mean the same in E'' strings whatever
-- standard_conforming_strings is. Enqueue makes the key itself of a payload that a codec has encoded: that
-- is a string (keyOfPayload in payload.go).
CREATE OR REPLACE FUNCTION outbox.resolve_key(given text, payload jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  canonical text;
  resolved  text;
BEGIN
  IF given NOT LIKE '$payload%' THEN
    RETURN given;
  END IF;
  IF jsonb_typeof(payload) = 'string' AND given COLLATE "C" ~ '^[$]payload:[0-9a-f]{64}$' THEN
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

-- Returns whether a waiting task has expired and not begun, also by the journal.
CREATE OR REPLACE FUNCTION outbox.is_expired(of_id bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = of_id AND t.expires_at <= clock_timestamp()
     AND t.attempt = 0 AND t.iterations = 0;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM FROM outbox.running r WHERE r.task_id = of_id AND r.task_ids IS NULL;
  IF NOT FOUND THEN
    PERFORM FROM outbox.running r WHERE r.task_ids IS NOT NULL AND r.last_id >= of_id
       AND r.first_id <= of_id AND of_id = ANY (r.task_ids);
  END IF;
  RETURN NOT FOUND;
END
$$;

-- Gives a new task its unique key, until the given time at least, unless a task has the key that waits and
-- has not expired, or runs and keeps it, or has it until a time to come.
CREATE OR REPLACE FUNCTION outbox.take_key(new_type text, new_key text, new_id bigint, until timestamptz)
  RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
DECLARE
  holder bigint;
  kept   boolean;
BEGIN
  LOOP
    SELECT k.task_id, k.keep_until > clock_timestamp() INTO holder, kept FROM outbox.unique_key k
     WHERE k.task_type = new_type AND k.key = new_key FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO outbox.unique_key (task_type, key, task_id, keep_until)
      VALUES (new_type, new_key, new_id, until) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN true;
    END IF;
  END LOOP;
  IF kept THEN
    RETURN false;
  END IF;
  CASE outbox.lock_waiting(holder)
    WHEN 'waiting' THEN
      IF NOT outbox.is_expired(holder) THEN
        RETURN false;
      END IF;
    WHEN 'running' THEN
      PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.unique_until_done;
      IF FOUND THEN
        RETURN false;
      END IF;
    ELSE -- gone
  END CASE;
  UPDATE outbox.unique_key k SET task_id = new_id, keep_until = until
   WHERE k.task_type = new_type AND k.key = new_key;
  RETURN true;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.take_key(text, text, bigint, timestamptz) FROM PUBLIC;
