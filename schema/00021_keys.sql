-- +goose Up
-- Unique keys: at most one waiting task for each type and key. Ordering keys: tasks of one type and
-- key run one after the other.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00021_keys.sql

-- Which task has a unique key, or had it last. A row whose task is gone means nothing, and is
-- swept.
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

-- Ordering keys that may have no head, the one task that may run. A relay promotes the next waiting
-- task, if there is one.
CREATE TABLE IF NOT EXISTS outbox.headless_key (
  headless_key_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_type    text   NOT NULL,
  ordering_key text   NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);

-- Its one row is locked by the relay that promotes.
CREATE TABLE IF NOT EXISTS outbox.promote_lock (
  promote_lock boolean PRIMARY KEY DEFAULT true CHECK (promote_lock)
);
INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Requests to cancel tasks that could not be had when they were asked for, as they run. Relays read
-- them with their heartbeat and delete them when the task is gone. Not unique by task: whoever
-- cancels waits for nobody.
CREATE TABLE IF NOT EXISTS outbox.cancel (
  cancel_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id      bigint      NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX IF NOT EXISTS cancel_task_id ON outbox.cancel (task_id);

-- Functions that are not SECURITY DEFINER are called by those that are, with their rights and
-- search_path.

-- Requests a new head for an ordering key, when this commits. True, so that a condition can call
-- it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.mark_headless(of_type text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES (of_type, key);
  RETURN true;
END
$$;
-- +goose StatementEnd

-- The same for a task that leaves its ordering key.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_left() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.headless_key (task_type, ordering_key)
    VALUES (OLD.task_type, OLD.ordering_key);
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- The unique key to insert under: $payload stands for the payload's own. Equal jsonb gives the same
-- key: its text has one form for all but numbers, where 1.50 equals 1.5, so zeros at the end of
-- fractions go, but not those in strings.
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
    canonical := regexp_replace(canonical,
      '("(?:[^"\\]|\\.)*")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])', '\1\2', 'g');
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
-- +goose StatementEnd

-- What the task is that a unique key names: waiting, running or gone. A waiting one is locked, so
-- that no claim can start it before this transaction ends; whoever only changes its state or time
-- is not in the way. A claim's lock is never waited for. One that was canceled while it ran is
-- about to be removed, and as good as gone. What cannot be locked is in a claim, or was written
-- back by one in this very moment: then the second pass finds its new row.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.lock_waiting(holder bigint) RETURNS text
LANGUAGE plpgsql AS $$
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
-- +goose StatementEnd

-- enable_seqscan is off because a session keeps its plans, also those made when the tables were
-- empty; jit, as what such a plan is said to cost would have it compiled each time, here and in the
-- triggers that are called from here.

-- Gives a new task its unique key, if it is to be had.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.take_key(new_type text, new_key text, new_id bigint)
  RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET jit = off AS $$
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
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.mark_headless(text, text) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_left() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.resolve_key(text, jsonb) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.lock_waiting(bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.take_key(text, text, bigint) FROM PUBLIC;

INSERT INTO outbox.migration (version) VALUES (21) ON CONFLICT DO NOTHING;
