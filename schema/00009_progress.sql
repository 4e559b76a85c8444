-- +goose Up
-- How far the running tasks of a relay are, and the results of finished tasks.
--
-- A relay of the version before writes neither.
ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS progress jsonb;
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS result jsonb;

INSERT INTO outbox.migration (version, oldest_version) VALUES (9, 1) ON CONFLICT DO NOTHING;
