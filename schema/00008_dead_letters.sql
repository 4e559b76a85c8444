-- +goose Up
-- Dead letters that can be listed, redriven and purged; the history of finished tasks.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00008_dead_letters.sql

-- What a redriven task gets back.
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS task_max_attempts smallint;
COMMENT ON COLUMN outbox.dead_task.max_attempts      IS 'the limit that held: the task''s own or its handler''s';
COMMENT ON COLUMN outbox.dead_task.task_max_attempts IS 'the task''s own limit; NULL: it had none, or died before this column was there';

CREATE INDEX IF NOT EXISTS dead_task_died ON outbox.dead_task (died_at, task_id);
CREATE INDEX IF NOT EXISTS dead_task_type ON outbox.dead_task (task_type, died_at, task_id);

-- Finished tasks of the types that keep them. Nothing else reads it: a task in it is finished.
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
COMMENT ON COLUMN outbox.done_task.last_error IS 'what its handler discarded it for; NULL: the handler succeeded';

CREATE INDEX IF NOT EXISTS done_task_keep_until ON outbox.done_task (keep_until);

INSERT INTO outbox.migration (version) VALUES (8) ON CONFLICT DO NOTHING;
