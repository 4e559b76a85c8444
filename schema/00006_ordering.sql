-- +goose Up
-- Ordering keys: tasks of one type and key run one after the other.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00006_ordering.sql

ALTER TABLE outbox.task
  ADD COLUMN IF NOT EXISTS ordering_key text,
  ADD COLUMN IF NOT EXISTS skip_failed  boolean NOT NULL DEFAULT false;
ALTER TABLE outbox.dead_task
  ADD COLUMN IF NOT EXISTS ordering_key text,
  ADD COLUMN IF NOT EXISTS skip_failed  boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.task.ordering_key IS 'tasks of one type and key run one after the other; NULL: in no order';
COMMENT ON COLUMN outbox.task.skip_failed  IS 'after a failed attempt the task leaves the order, and the key goes on';

-- A task that waits is behind another of its key. Rows that are there met a stricter check.
ALTER TABLE outbox.task DROP CONSTRAINT task_state_check;
ALTER TABLE outbox.task ADD CONSTRAINT task_state_check
  CHECK (state IN ('ready', 'scheduled', 'leased') OR state = 'waiting' AND ordering_key IS NOT NULL) NOT VALID;

-- The first of a key, which is the only one that may run, and those behind it.
CREATE UNIQUE INDEX IF NOT EXISTS task_first ON outbox.task (task_type, ordering_key)
  WHERE ordering_key IS NOT NULL AND state <> 'waiting';
CREATE INDEX IF NOT EXISTS task_waiting ON outbox.task (task_type, ordering_key, task_id) WHERE state = 'waiting';

-- Keys that may have no first task: a relay gives the turn to the next, if there is one.
CREATE TABLE IF NOT EXISTS outbox.turn (
  turn_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_type    text   NOT NULL,
  ordering_key text   NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);

-- Its one row is locked by who gives turns.
CREATE TABLE IF NOT EXISTS outbox.turn_lock (turn_lock boolean PRIMARY KEY DEFAULT true CHECK (turn_lock));
INSERT INTO outbox.turn_lock DEFAULT VALUES ON CONFLICT DO NOTHING;

-- A task with a key waits until its turn is given to it, and so asks no other transaction.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.timeout_ms <= 0 THEN
    RAISE EXCEPTION 'timeout_ms is %, must be positive, or NULL for the handler''s', NEW.timeout_ms
      USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_timeout_check';
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

-- The first of a key is gone, when this commits.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_next() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.turn (task_type, ordering_key) VALUES (OLD.task_type, OLD.ordering_key);
  RETURN NULL;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.task_next() FROM PUBLIC;

CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.state = 'ready' AND (NEW.run_at > now() OR NEW.timeout_ms IS NOT NULL OR NEW.ordering_key IS NOT NULL))
  EXECUTE FUNCTION outbox.task_arrive();
CREATE OR REPLACE TRIGGER task_next AFTER DELETE ON outbox.task
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL AND OLD.state <> 'waiting') EXECUTE FUNCTION outbox.task_next();
CREATE OR REPLACE TRIGGER task_left AFTER UPDATE OF ordering_key ON outbox.task
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL AND OLD.ordering_key IS DISTINCT FROM NEW.ordering_key)
  EXECUTE FUNCTION outbox.task_next();

INSERT INTO outbox.migration (version) VALUES (6) ON CONFLICT DO NOTHING;
