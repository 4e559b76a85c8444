-- +goose Up
-- Tasks that are to run, those that are dead or done, and how they arrive.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00022_tasks.sql

-- What is still to do. A finished task is deleted. It has no CHECKs and few triggers, as PostgreSQL
-- prepares each CHECK, and each WHEN of a trigger, anew for every statement: task_wake and
-- task_changed check, and a session keeps their plans.
CREATE TABLE IF NOT EXISTS outbox.task (
  task_id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_at            timestamptz NOT NULL DEFAULT now(),
  created_at        timestamptz NOT NULL DEFAULT now(),
  attempted_at      timestamptz,
  leased_until      timestamptz,
  relay_id          uuid,
  lease_token       uuid,
  priority          smallint    NOT NULL DEFAULT 0,
  attempt           smallint    NOT NULL DEFAULT 0,
  max_attempts      smallint,
  state             text        NOT NULL DEFAULT 'ready',
  task_type         text        NOT NULL,
  payload           jsonb       NOT NULL DEFAULT '{}',
  headers           jsonb,
  last_error        text,
  timeout_ms        integer,
  iterations        integer     NOT NULL DEFAULT 0,
  ordering_key      text,
  skip_failed       boolean     NOT NULL DEFAULT false,
  unique_key        text,
  unique_until_done boolean     NOT NULL DEFAULT false
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.task.relay_id
  IS 'leased: the relay that holds the lease; otherwise: the relay that died while it ran this '
     'task';
COMMENT ON COLUMN outbox.task.priority          IS 'lower runs first; 0 is normal';
COMMENT ON COLUMN outbox.task.attempt           IS 'attempts begun and counted; 0 until the first';
COMMENT ON COLUMN outbox.task.max_attempts      IS 'NULL: as the handler was registered';
COMMENT ON COLUMN outbox.task.timeout_ms
  IS 'of one run; NULL: as the handler was registered';
COMMENT ON COLUMN outbox.task.iterations
  IS 'how often its handler returned RunAgain; 0 until the first time';
COMMENT ON COLUMN outbox.task.ordering_key
  IS 'tasks of one type and key run one after the other; NULL: in no order';
COMMENT ON COLUMN outbox.task.skip_failed
  IS 'after a failed attempt the task leaves the order, and the key goes on';
COMMENT ON COLUMN outbox.task.unique_key
  IS 'at most one waiting task of a type has it; insert $payload to have it made of the payload';
COMMENT ON COLUMN outbox.task.unique_until_done
  IS 'the task keeps its key while it runs and through its retries';

-- The lanes: what may be claimed, in the order of claiming. Each entry has its task's id, so none
-- equals another but for dead ones of the same task. To look for equal ones before a page is split,
-- as PostgreSQL does by default, saves no split.
CREATE INDEX IF NOT EXISTS task_lane ON outbox.task (task_type, priority, attempt, task_id)
  WITH (deduplicate_items = off) WHERE state = 'ready';
CREATE INDEX IF NOT EXISTS task_scheduled ON outbox.task (task_type, run_at)
  WHERE state = 'scheduled';
CREATE INDEX IF NOT EXISTS task_leased ON outbox.task (relay_id, leased_until)
  WHERE state = 'leased';
-- The head of an ordering key, and those behind it.
CREATE UNIQUE INDEX IF NOT EXISTS task_head ON outbox.task (task_type, ordering_key)
  WHERE ordering_key IS NOT NULL AND state <> 'waiting';
CREATE INDEX IF NOT EXISTS task_waiting ON outbox.task (task_type, ordering_key, task_id)
  WHERE state = 'waiting';
-- Pages of waiting tasks by id. task_waiting has the ordering key first, which not everybody may
-- read. Statements that look for the next task of an ordering key must not take this one for its
-- order, nor pages that one, so no condition implies the other.
CREATE INDEX IF NOT EXISTS task_waiting_id ON outbox.task (task_type, task_id)
  WHERE state || '' = 'waiting';

-- Dead letters: tasks that no relay will run again by itself.
CREATE TABLE IF NOT EXISTS outbox.dead_task (
  task_id           bigint      PRIMARY KEY,
  run_at            timestamptz NOT NULL,
  created_at        timestamptz NOT NULL,
  attempted_at      timestamptz,
  died_at           timestamptz NOT NULL DEFAULT now(),
  priority          smallint    NOT NULL,
  attempt           smallint    NOT NULL,
  max_attempts      smallint    NOT NULL,
  reason            text        NOT NULL,
  task_type         text        NOT NULL,
  payload           jsonb       NOT NULL,
  headers           jsonb,
  last_error        text,
  timeout_ms        integer,
  iterations        integer     NOT NULL DEFAULT 0,
  ordering_key      text,
  skip_failed       boolean     NOT NULL DEFAULT false,
  unique_key        text,
  unique_until_done boolean     NOT NULL DEFAULT false,
  task_max_attempts smallint,
  CONSTRAINT dead_task_reason_check
    CHECK (reason IN ('attempts', 'handler', 'lost_connections', 'committed')),
  CONSTRAINT dead_task_attempts_check CHECK (reason <> 'attempts' OR attempt >= max_attempts)
);
COMMENT ON COLUMN outbox.dead_task.reason
  IS 'attempts: all were used; handler: it returned Dead, or its backoff said stop; '
     'lost_connections: ten runs lost their connection; '
     'committed: the handler committed the claim and then failed';
COMMENT ON COLUMN outbox.dead_task.max_attempts
  IS 'the limit that held: the task''s own or its handler''s';
COMMENT ON COLUMN outbox.dead_task.task_max_attempts
  IS 'the task''s own limit, which a redriven task gets back; NULL: it had none';
CREATE INDEX IF NOT EXISTS dead_task_died ON outbox.dead_task (died_at, task_id);
CREATE INDEX IF NOT EXISTS dead_task_type ON outbox.dead_task (task_type, died_at, task_id);

-- History: finished tasks of the types that keep them. Nothing else reads it: a task in it is
-- finished.
CREATE TABLE IF NOT EXISTS outbox.done_task (
  task_id      bigint      PRIMARY KEY,
  run_at       timestamptz NOT NULL,
  created_at   timestamptz NOT NULL,
  attempted_at timestamptz,
  finished_at  timestamptz NOT NULL,
  keep_until   timestamptz NOT NULL,
  priority     smallint    NOT NULL,
  attempt      smallint    NOT NULL,
  task_type    text        NOT NULL,
  payload      jsonb       NOT NULL,
  headers      jsonb,
  last_error   text
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.done_task.keep_until IS 'relays delete the row after this time';
COMMENT ON COLUMN outbox.done_task.last_error
  IS 'what its handler discarded it for; NULL: the handler succeeded';
CREATE INDEX IF NOT EXISTS done_task_keep_until ON outbox.done_task (keep_until);
CREATE INDEX IF NOT EXISTS done_task_type ON outbox.done_task (task_type, task_id);

-- Refuses a row that no relay could run, with the error that a CHECK of that name would give.
-- Triggers call it for suspect rows, with their rights and search_path. A session keeps its plan,
-- also one that was made when the table was empty.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.check_task(suspect bigint) RETURNS boolean
LANGUAGE plpgsql COST 1 SET enable_seqscan = off SET jit = off
  SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  violated text;
BEGIN
  SELECT CASE
      WHEN NOT (state IN ('ready', 'scheduled', 'leased')
             OR state = 'waiting' AND ordering_key IS NOT NULL) THEN 'state'
      WHEN NOT ((state = 'leased') = (lease_token IS NOT NULL)
            AND (lease_token IS NULL OR relay_id IS NOT NULL)
            AND (leased_until IS NULL OR lease_token IS NOT NULL)) THEN 'lease'
      WHEN NOT (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]')
        THEN 'type'
      WHEN NOT (attempt >= 0) THEN 'attempt'
      WHEN NOT (max_attempts > 0) THEN 'max_attempts'
      WHEN NOT (jsonb_typeof(headers) = 'object') THEN 'headers'
      WHEN NOT (isfinite(run_at) AND run_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(attempted_at) AND attempted_at < '10000-01-01 00:00:00+00') THEN 'time'
      WHEN state = 'ready' AND timeout_ms <= 0 THEN 'timeout'
    END
    INTO violated FROM outbox.task WHERE task_id = suspect;
  IF violated IS NOT NULL THEN
    RAISE EXCEPTION 'the task violates task_%_check', violated
      USING ERRCODE = 'check_violation', TABLE = 'task',
        CONSTRAINT = 'task_' || violated || '_check';
  END IF;
  RETURN true;
END
$$;
-- +goose StatementEnd

-- What a new task is that is not simply ready. Rows that arrive in another state are the library's
-- own, written back: they have their unique key again if it still names them, and are never
-- dropped. A row with a unique key that is taken is dropped. A task with an ordering key waits
-- until it is promoted, so it asks no other transaction.
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
      RAISE EXCEPTION 'the ordering key has % bytes, must have 1 to 256',
        octet_length(NEW.ordering_key)
        USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_ordering_check';
    END IF;
    NEW.state := 'waiting';
    INSERT INTO outbox.headless_key (task_type, ordering_key)
      VALUES (NEW.task_type, NEW.ordering_key);
  ELSIF NEW.run_at > now() THEN
    NEW.state := 'scheduled';
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.check_task(bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_arrive() FROM PUBLIC;

-- CURRENT_TIMESTAMP is now(), and no function that each statement would look up.
CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.run_at > CURRENT_TIMESTAMP OR NEW.ordering_key IS NOT NULL
    OR NEW.unique_key IS NOT NULL)
  EXECUTE FUNCTION outbox.task_arrive();
CREATE OR REPLACE TRIGGER task_left AFTER UPDATE OF ordering_key ON outbox.task
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL
    AND OLD.ordering_key IS DISTINCT FROM NEW.ordering_key)
  EXECUTE FUNCTION outbox.task_left();
CREATE OR REPLACE TRIGGER task_wake AFTER INSERT ON outbox.task REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_wake();
CREATE OR REPLACE TRIGGER task_removed AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_removed();
CREATE OR REPLACE TRIGGER task_changed AFTER UPDATE ON outbox.task
  REFERENCING OLD TABLE AS removed NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_changed();
CREATE OR REPLACE TRIGGER task_truncated AFTER TRUNCATE ON outbox.task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();
CREATE OR REPLACE TRIGGER dead_task_added AFTER INSERT ON outbox.dead_task
  REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_added();
CREATE OR REPLACE TRIGGER dead_task_removed AFTER DELETE ON outbox.dead_task
  REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_removed();
CREATE OR REPLACE TRIGGER dead_task_truncated AFTER TRUNCATE ON outbox.dead_task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();

-- A plain task, for outbox.Enqueue: here the INSERT is planned once a session, which saves more
-- than all triggers cost. It has the rights of its caller, who needs those that the INSERT needs,
-- so everybody may call it.
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
GRANT EXECUTE ON FUNCTION outbox.enqueue_task(text, jsonb) TO PUBLIC;

-- Tasks with unique keys, to insert into with on_conflict, and to be told what came of it:
--   INSERT INTO outbox.keyed_task (task_type, payload, unique_key, on_conflict)
--   VALUES ... RETURNING task_id, outcome
CREATE OR REPLACE VIEW outbox.keyed_task AS
SELECT task_id, task_type, payload, priority, max_attempts, headers, run_at, timeout_ms,
  ordering_key, skip_failed, unique_key, unique_until_done,
       NULL::text AS on_conflict, NULL::text AS outcome, NULL::bigint AS position
  FROM outbox.task WHERE unique_key IS NOT NULL;
ALTER VIEW outbox.keyed_task ALTER COLUMN payload SET DEFAULT '{}';
ALTER VIEW outbox.keyed_task ALTER COLUMN priority SET DEFAULT 0;
ALTER VIEW outbox.keyed_task ALTER COLUMN run_at SET DEFAULT now();
ALTER VIEW outbox.keyed_task ALTER COLUMN skip_failed SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN unique_until_done SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN on_conflict SET DEFAULT 'skip';
COMMENT ON COLUMN outbox.keyed_task.on_conflict
  IS 'skip, replace (payload, headers, run_at, priority) or reschedule (run_at)';
COMMENT ON COLUMN outbox.keyed_task.outcome
  IS 'RETURNING: created, updated or skipped; task_id is the task that has the key';
COMMENT ON COLUMN outbox.keyed_task.position    IS 'RETURNING: as it was given';

-- Inserts a task with a unique key, or does to the waiting task that has it what on_conflict says.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.keyed_task_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET jit = off AS $$
BEGIN
  IF NEW.on_conflict IS NULL OR NEW.on_conflict NOT IN ('skip', 'replace', 'reschedule') THEN
    RAISE EXCEPTION 'on_conflict is %, must be skip, replace or reschedule',
      COALESCE(NEW.on_conflict, 'NULL')
      USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO outbox.task (task_type, payload, priority, max_attempts, headers, run_at, timeout_ms,
    ordering_key, skip_failed, unique_key, unique_until_done)
  VALUES (NEW.task_type, NEW.payload, NEW.priority, NEW.max_attempts, NEW.headers, NEW.run_at,
    NEW.timeout_ms, NEW.ordering_key, NEW.skip_failed,
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
           state    = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
             WHEN NEW.run_at > now() THEN 'scheduled' ELSE 'ready' END,
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

REVOKE EXECUTE ON FUNCTION outbox.keyed_task_insert() FROM PUBLIC;
CREATE OR REPLACE TRIGGER keyed_task_insert INSTEAD OF INSERT ON outbox.keyed_task
  FOR EACH ROW EXECUTE FUNCTION outbox.keyed_task_insert();

-- Counts what is there and not counted: nothing at first. Applied again, it mends wrong counts.
LOCK TABLE outbox.task, outbox.dead_task IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
SELECT n, CASE kind WHEN 'dead' THEN 0 ELSE n END, task_type, kind
  FROM (SELECT sum(n) AS n, task_type, kind
          FROM (SELECT count(*) AS n, task_type, state AS kind FROM outbox.task GROUP BY 2, 3
                UNION ALL SELECT count(*), task_type, 'dead' FROM outbox.dead_task GROUP BY 2
                UNION ALL SELECT -tasks, task_type, kind FROM outbox.counter
                UNION ALL SELECT -tasks, task_type, kind FROM outbox.counter_log) AS c
         WHERE kind NOT IN ('failed', 'canceled')
         GROUP BY task_type, kind) AS missing
 WHERE n <> 0;

INSERT INTO outbox.migration (version) VALUES (22) ON CONFLICT DO NOTHING;
