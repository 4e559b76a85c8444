-- +goose Up
-- Expiry: a task that has not begun by expires_at does not run, and is a dead letter with the reason
-- expired, or removed.
--
-- A relay of the version before runs it all the same: enqueue with the option once all relays are new.
ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS expires_at timestamptz;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS expires_at timestamptz;
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS expires_at timestamptz;
-- What may expire, for the job that ends what no claim comes to.
CREATE INDEX IF NOT EXISTS task_expires ON outbox.task (expires_at, task_id)
  WHERE expires_at IS NOT NULL AND attempt = 0 AND iterations = 0;

ALTER TABLE outbox.dead_task DROP CONSTRAINT IF EXISTS dead_task_reason_check,
  ADD CONSTRAINT dead_task_reason_check CHECK (reason IN ('attempts', 'handler', 'lost_connections', 'committed', 'expired')) NOT VALID;
ALTER TABLE outbox.dead_task VALIDATE CONSTRAINT dead_task_reason_check;

INSERT INTO outbox.migration (version, oldest_version) VALUES (6, 1) ON CONFLICT DO NOTHING;
