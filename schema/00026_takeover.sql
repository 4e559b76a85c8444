-- +goose Up
-- When a dead relay's leases were taken over.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00026_takeover.sql

ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS taken_over_at timestamptz;
COMMENT ON COLUMN outbox.relay.taken_over_at
  IS 'when another relay last found this one dead, and took over what it held; NULL: alive';

INSERT INTO outbox.migration (version) VALUES (26) ON CONFLICT DO NOTHING;
