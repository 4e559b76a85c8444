-- +goose Up
-- Unique keys: at most one waiting task for each type and key.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00007_keys.sql

ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS unique_key text;
ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS unique_until_done boolean NOT NULL DEFAULT false;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS unique_key text;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS unique_until_done boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.task.unique_key        IS 'at most one waiting task of a type has it; insert $payload to have it made of the payload';
COMMENT ON COLUMN outbox.task.unique_until_done IS 'the task keeps its key while it runs and through its retries';

-- Which task has a key, or had it last. A row whose task is gone means nothing, and is swept.
CREATE TABLE IF NOT EXISTS outbox.unique_key (
  task_type text   NOT NULL,
  key       text   NOT NULL,
  task_id   bigint NOT NULL,
  PRIMARY KEY (task_type, key),
  CONSTRAINT unique_key_length_check CHECK (octet_length(key) BETWEEN 1 AND 256)
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);

-- The functions that are not SECURITY DEFINER are called by those that are, with their rights and search_path.

-- The key to insert under: $payload stands for the payload's own. Equal jsonb gives the same key: its text has one form for all but
-- numbers, where 1.50 equals 1.5, so zeros at the end of fractions go, but not those in strings.
-- +goose StatementBegin
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
  IF canonical ~ '\.[0-9]*0' THEN
    canonical := regexp_replace(canonical, '("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])', '\1\2', 'g');
  END IF;
  resolved := '$payload:' || encode(sha256(convert_to(canonical, 'UTF8')), 'hex');
  IF given NOT IN ('$payload', resolved) THEN
    RAISE EXCEPTION 'a unique key must not begin with $payload, which stands for the key of the payload'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN resolved;
END
$$;
-- +goose StatementEnd

-- What the task is that a key names: waiting, running or gone. A waiting one is locked, so that no claim can start it before
-- this transaction ends; whoever only changes its state or time is not in the way. A claim's lock is never waited for.
-- One that is about to be removed, as it was canceled while it ran, is as good as gone.
-- What cannot be locked is in a claim, or was written back by one in this very moment: then the second look finds its new row.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.lock_waiting(holder bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  found_state text;
BEGIN
  FOR look IN 1..2 LOOP
    SELECT t.state INTO found_state FROM outbox.task t WHERE t.task_id = holder;
    IF NOT FOUND THEN
      RETURN 'gone';
    END IF;
    EXIT WHEN found_state = 'leased';
    PERFORM FROM outbox.task t WHERE t.task_id = holder AND t.state <> 'leased' FOR KEY SHARE SKIP LOCKED;
    IF FOUND THEN
      PERFORM FROM outbox.cancel c WHERE c.task_id = holder;
      RETURN CASE WHEN FOUND THEN 'gone' ELSE 'waiting' END;
    END IF;
  END LOOP;
  RETURN 'running';
END
$$;
-- +goose StatementEnd

-- enable_seqscan is off because a session keeps its plans, also those made when the tables were empty; jit, as what such a plan is said to cost
-- would have it compiled each time, here and in the triggers that are called from here.

-- Gives a new task its key, if it is to be had.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.take_key(new_type text, new_key text, new_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
  holder bigint;
BEGIN
  LOOP
    SELECT k.task_id INTO holder FROM outbox.unique_key k WHERE k.task_type = new_type AND k.key = new_key FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES (new_type, new_key, new_id) ON CONFLICT DO NOTHING;
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
-- +goose StatementEnd

-- A row with a key that is taken is dropped. Rows that arrive in another state than ready are the library's own, written back:
-- they have their key again if it still names them, and are never dropped.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.timeout_ms <= 0 THEN
    RAISE EXCEPTION 'timeout_ms is %, must be positive, or NULL for the handler''s', NEW.timeout_ms
      USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_timeout_check';
  END IF;
  IF NEW.unique_key IS NOT NULL THEN
    NEW.unique_key := outbox.resolve_key(NEW.unique_key, NEW.payload);
    IF NOT outbox.take_key(NEW.task_type, NEW.unique_key, NEW.task_id) THEN
      RETURN NULL;
    END IF;
  END IF;
  IF NEW.ordering_key IS NOT NULL THEN
    IF octet_length(NEW.ordering_key) NOT BETWEEN 1 AND 256 THEN
      RAISE EXCEPTION 'the ordering key has % bytes, must have 1 to 256', octet_length(NEW.ordering_key)
        USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_ordering_check';
    END IF;
    NEW.state := 'waiting';
    INSERT INTO outbox.turn (task_type, ordering_key) VALUES (NEW.task_type, NEW.ordering_key);
  ELSIF NEW.run_at > now() THEN
    NEW.state := 'scheduled';
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Tasks with keys, to insert into with on_conflict, and to be told what came of it:
--   INSERT INTO outbox.keyed_task (task_type, payload, unique_key, on_conflict) VALUES ... RETURNING task_id, outcome
CREATE OR REPLACE VIEW outbox.keyed_task AS
SELECT task_id, task_type, payload, priority, max_attempts, headers, run_at, timeout_ms, ordering_key, skip_failed, unique_key, unique_until_done,
       NULL::text AS on_conflict, NULL::text AS outcome, NULL::bigint AS position
  FROM outbox.task WHERE unique_key IS NOT NULL;
ALTER VIEW outbox.keyed_task ALTER COLUMN payload SET DEFAULT '{}';
ALTER VIEW outbox.keyed_task ALTER COLUMN priority SET DEFAULT 0;
ALTER VIEW outbox.keyed_task ALTER COLUMN run_at SET DEFAULT now();
ALTER VIEW outbox.keyed_task ALTER COLUMN skip_failed SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN unique_until_done SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN on_conflict SET DEFAULT 'skip';
COMMENT ON COLUMN outbox.keyed_task.on_conflict IS 'skip, replace (payload, headers, run_at, priority) or reschedule (run_at)';
COMMENT ON COLUMN outbox.keyed_task.outcome     IS 'RETURNING: created, updated or skipped; task_id is the task that has the key';
COMMENT ON COLUMN outbox.keyed_task.position    IS 'RETURNING: as it was given';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.keyed_task_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF NEW.on_conflict IS NULL OR NEW.on_conflict NOT IN ('skip', 'replace', 'reschedule') THEN
    RAISE EXCEPTION 'on_conflict is %, must be skip, replace or reschedule', COALESCE(NEW.on_conflict, 'NULL')
      USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO outbox.task (task_type, payload, priority, max_attempts, headers, run_at, timeout_ms, ordering_key, skip_failed, unique_key, unique_until_done)
  VALUES (NEW.task_type, NEW.payload, NEW.priority, NEW.max_attempts, NEW.headers, NEW.run_at, NEW.timeout_ms, NEW.ordering_key, NEW.skip_failed,
          NEW.unique_key, NEW.unique_until_done)
  RETURNING task_id INTO NEW.task_id;
  IF FOUND THEN
    NEW.outcome := 'created';
    RETURN NEW;
  END IF;
  SELECT k.task_id, 'skipped' INTO NEW.task_id, NEW.outcome FROM outbox.unique_key k
   WHERE k.task_type = NEW.task_type AND k.key = outbox.resolve_key(NEW.unique_key, NEW.payload);
  IF NEW.on_conflict <> 'skip' AND outbox.lock_waiting(NEW.task_id) = 'waiting' THEN
    UPDATE outbox.task t
       SET run_at   = NEW.run_at,
           state    = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state WHEN NEW.run_at > now() THEN 'scheduled' ELSE 'ready' END,
           payload  = CASE NEW.on_conflict WHEN 'replace' THEN NEW.payload  ELSE t.payload  END,
           headers  = CASE NEW.on_conflict WHEN 'replace' THEN NEW.headers  ELSE t.headers  END,
           priority = CASE NEW.on_conflict WHEN 'replace' THEN NEW.priority ELSE t.priority END
     WHERE t.task_id = NEW.task_id;
    NEW.outcome := 'updated';
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.resolve_key(text, jsonb) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.lock_waiting(bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.take_key(text, text, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.keyed_task_insert() FROM PUBLIC;

CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.state = 'ready' AND (NEW.run_at > now() OR NEW.timeout_ms IS NOT NULL OR NEW.ordering_key IS NOT NULL OR NEW.unique_key IS NOT NULL))
  EXECUTE FUNCTION outbox.task_arrive();
CREATE OR REPLACE TRIGGER keyed_task_insert INSTEAD OF INSERT ON outbox.keyed_task
  FOR EACH ROW EXECUTE FUNCTION outbox.keyed_task_insert();

INSERT INTO outbox.migration (version) VALUES (7) ON CONFLICT DO NOTHING;
