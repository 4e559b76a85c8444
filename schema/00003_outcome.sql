-- +goose Up
-- What a finished task ended as. Code of version 2 writes none: last_error tells then.
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS outcome text COLLATE "C";

INSERT INTO outbox.migration (version, oldest_version) VALUES (3, 1) ON CONFLICT DO NOTHING;
