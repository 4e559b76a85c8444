-- +goose Up
-- Unique keys for a period: a key is kept until then, whatever becomes of its task.
--
-- A relay of the version before sweeps the keys of tasks that are gone, also these: enqueue with the
-- option once all relays are new.
ALTER TABLE outbox.unique_key ADD COLUMN IF NOT EXISTS keep_until timestamptz;
ALTER TABLE outbox.task ADD COLUMN IF NOT EXISTS unique_until timestamptz;
ALTER TABLE outbox.dead_task ADD COLUMN IF NOT EXISTS unique_until timestamptz;
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS unique_until timestamptz;

INSERT INTO outbox.migration (version, oldest_version) VALUES (7, 1) ON CONFLICT DO NOTHING;
