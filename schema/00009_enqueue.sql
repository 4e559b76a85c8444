-- +goose Up
-- A cheaper enqueue: what a task must be like is checked by the triggers that count, and a plain task is inserted by a function.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00009_enqueue.sql

-- PostgreSQL prepares each CHECK of a table, and each WHEN of its triggers, anew for every statement: seven CHECKs were a large part of
-- a single insert. A function's statements are prepared once a session. The rows that are there met the CHECKs.
ALTER TABLE outbox.task
  DROP CONSTRAINT IF EXISTS task_state_check,
  DROP CONSTRAINT IF EXISTS task_lease_check,
  DROP CONSTRAINT IF EXISTS task_type_check,
  DROP CONSTRAINT IF EXISTS task_attempt_check,
  DROP CONSTRAINT IF EXISTS task_max_attempts_check,
  DROP CONSTRAINT IF EXISTS task_headers_check,
  DROP CONSTRAINT IF EXISTS task_time_check;

-- Refuses a row that no relay could run, with the error that a CHECK of that name would give. It is called for rows
-- that look suspect, by triggers, with their rights and search_path. A session keeps its plan, also one that was made when the
-- table was empty.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.check_task(suspect bigint) RETURNS boolean
LANGUAGE plpgsql COST 1 SET enable_seqscan = off SET jit = off AS $$
DECLARE
  violated text;
BEGIN
  SELECT CASE
      WHEN NOT (state IN ('ready', 'scheduled', 'leased') OR state = 'waiting' AND ordering_key IS NOT NULL) THEN 'state'
      WHEN NOT ((state = 'leased') = (lease_token IS NOT NULL) AND (lease_token IS NULL OR relay_id IS NOT NULL)
            AND (leased_until IS NULL OR lease_token IS NOT NULL)) THEN 'lease'
      WHEN NOT (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]') THEN 'type'
      WHEN NOT (attempt >= 0) THEN 'attempt'
      WHEN NOT (max_attempts > 0) THEN 'max_attempts'
      WHEN NOT (jsonb_typeof(headers) = 'object') THEN 'headers'
      WHEN NOT (isfinite(run_at) AND isfinite(created_at) AND run_at < '10000-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(attempted_at) AND attempted_at < '10000-01-01 00:00:00+00') THEN 'time'
      WHEN state = 'ready' AND timeout_ms <= 0 THEN 'timeout'
    END
    INTO violated FROM outbox.task WHERE task_id = suspect;
  IF violated IS NOT NULL THEN
    RAISE EXCEPTION 'the task violates task_%_check', violated
      USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_' || violated || '_check';
  END IF;
  RETURN true;
END
$$;
-- +goose StatementEnd

-- Counts, checks and wakes: one function for all of it, as a second one costs a single insert too much. The first three rows
-- are counted one by one, since an aggregate costs a single one as much as all the rest, and the others in sums (the scan of a
-- transition table has one order). A task that a relay writes back has been attempted; all others are new. What the conditions let
-- pass is legal by check_task, which returns true or fails; of the first three the ordinary ones, as each step of a condition costs
-- in every statement. NOTIFY takes a lock that serialises commits, so it is sent only while a relay asks for it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1, num_nulls(attempted_at), task_type, state FROM added
   WHERE state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, timeout_ms, attempted_at) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity' AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
      OR outbox.check_task(task_id)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, state FROM (SELECT * FROM added OFFSET 3) AS rest
     WHERE (state IN ('ready', 'scheduled') OR state = 'waiting' AND ordering_key IS NOT NULL) AND attempt >= 0
       AND num_nonnulls(lease_token, leased_until) = 0
       AND (max_attempts > 0) IS NOT FALSE AND (timeout_ms > 0) IS NOT FALSE AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
       AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
       AND least(run_at, created_at, attempted_at) > '-infinity'
       AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
        OR outbox.check_task(task_id)
     GROUP BY task_type, state;
  END IF;
  IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
    PERFORM pg_notify(TG_TABLE_SCHEMA, '');
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT sum(n), sum(n), task_type, state
    FROM (SELECT 1 AS n, task_type, state FROM added
           WHERE (state IN ('ready', 'scheduled') AND num_nonnulls(lease_token, leased_until) = 0
               OR state = 'leased' AND num_nulls(lease_token, relay_id) = 0) AND attempt >= 0
             AND (max_attempts > 0) IS NOT FALSE AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
             AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
             AND least(run_at, created_at, attempted_at) > '-infinity'
             AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
              OR outbox.check_task(task_id)
          UNION ALL SELECT -1, task_type, state FROM removed) AS change
   GROUP BY task_type, state HAVING sum(n) <> 0;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What a new task is that is not simply ready. Rows that arrive in another state are the library's own, written back: they have
-- their key again if it still names them, and are never dropped. A row with a key that is taken is.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.state <> 'ready' THEN
    RETURN NEW;
  END IF;
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

-- A plain task, for outbox.Enqueue: here the INSERT is planned once a session, which saves more than all triggers cost.
-- It has the rights of its caller, who needs those that the INSERT needs, so everybody may call it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.enqueue_task(task_type text, payload jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  new_id bigint;
BEGIN
  INSERT INTO outbox.task AS t (task_type, payload) VALUES ($1, $2) RETURNING t.task_id INTO new_id;
  RETURN new_id;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.check_task(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.enqueue_task(text, jsonb) TO PUBLIC;

CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.run_at > now() OR COALESCE(NEW.ordering_key, NEW.unique_key) IS NOT NULL) EXECUTE FUNCTION outbox.task_arrive();

-- The sixth file, when it is applied again, drops a constraint of this name. It is the cheapest there is.
ALTER TABLE outbox.task ADD CONSTRAINT task_state_check CHECK (true) NOT VALID;

INSERT INTO outbox.migration (version) VALUES (9) ON CONFLICT DO NOTHING;
