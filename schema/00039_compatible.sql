-- +goose Up
-- Each migration says the oldest code that may run beside it. A migration before this one does not.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00039_compatible.sql

ALTER TABLE outbox.migration
  ADD COLUMN IF NOT EXISTS oldest_version integer
    CONSTRAINT migration_oldest_version_check CHECK (oldest_version BETWEEN 1 AND version);
COMMENT ON COLUMN outbox.migration.oldest_version
  IS 'code whose newest migration is this one, or newer, may run beside this migration; '
     'NULL: only code that has it';

INSERT INTO outbox.migration (version, oldest_version) VALUES (39, 38) ON CONFLICT DO NOTHING;
