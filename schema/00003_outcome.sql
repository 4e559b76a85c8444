-- +goose Up
-- What a finished task ended as. Older code writes none: then last_error tells.
ALTER TABLE outbox.done_task ADD COLUMN IF NOT EXISTS outcome text COLLATE "C";

INSERT INTO outbox.migration (version, oldest_version) VALUES (3, 1) ON CONFLICT DO NOTHING;
