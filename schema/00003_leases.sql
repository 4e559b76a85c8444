-- +goose Up
-- A timeout of a task's own, and requests to cancel tasks that run.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00003_leases.sql

ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS timeout_ms integer;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS timeout_ms integer;
COMMENT ON COLUMN outbox.task.timeout_ms IS 'of one run; NULL: as the handler was registered';

-- What a new task is that is not simply ready: one trigger for all of it, which also checks what few tasks have, because
-- each trigger and each CHECK costs every single insert a few percent.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.timeout_ms <= 0 THEN
    RAISE EXCEPTION 'timeout_ms is %, must be positive, or NULL for the handler''s', NEW.timeout_ms
      USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_timeout_check';
  END IF;
  IF NEW.run_at > now() THEN
    NEW.state := 'scheduled';
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.task_arrive() FROM PUBLIC;

CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.state = 'ready' AND (NEW.run_at > now() OR NEW.timeout_ms IS NOT NULL)) EXECUTE FUNCTION outbox.task_arrive();
DROP TRIGGER IF EXISTS task_schedule ON outbox.task;
DROP FUNCTION IF EXISTS outbox.task_schedule();

-- Requests to cancel tasks that could not be had when they were asked for, as they run. Relays read them with their
-- heartbeat and delete them when the task is gone. Not unique by task: whoever cancels waits for nobody.
CREATE TABLE IF NOT EXISTS outbox.cancel (
  cancel_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_id      bigint      NOT NULL,
  requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX IF NOT EXISTS cancel_task_id ON outbox.cancel (task_id);

-- A task that waits is deleted in the caller's transaction: canceled. One that is leased or locked, as it runs, is
-- asked to end: requested. It waits for no lock of a run.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.cancel_task(task_id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state <> 'leased' FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    WITH gone AS (DELETE FROM outbox.task t WHERE t.task_id = $1 RETURNING t.task_type)
    INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, gone.task_type, 'canceled' FROM gone;
    RETURN 'canceled';
  END IF;
  PERFORM FROM outbox.task t WHERE t.task_id = $1;
  IF NOT FOUND THEN
    RETURN 'not found';
  END IF;
  INSERT INTO outbox.cancel (task_id)
  SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM outbox.cancel c WHERE c.task_id = $1);
  RETURN 'requested';
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.cancel_task(bigint) FROM PUBLIC;

INSERT INTO outbox.migration (version) VALUES (3) ON CONFLICT DO NOTHING;
