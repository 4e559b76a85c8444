-- +goose Up
-- Schedules that operators store, beside those of the relays' code.
--
-- A relay of the version before leaves them alone, and may take the name of one for its own.
ALTER TABLE outbox.schedule ADD COLUMN IF NOT EXISTS stored boolean NOT NULL DEFAULT false,
  ADD COLUMN IF NOT EXISTS time_zone text COLLATE "C" NOT NULL DEFAULT '',
  ADD COLUMN IF NOT EXISTS wrong text COLLATE "C";
ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS parses boolean NOT NULL DEFAULT false;

INSERT INTO outbox.migration (version, oldest_version) VALUES (8, 1) ON CONFLICT DO NOTHING;
