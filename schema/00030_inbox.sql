-- +goose Up
-- What a consumer of events has handled, for package inbox.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00030_inbox.sql

CREATE TABLE IF NOT EXISTS outbox.inbox (
  received_at timestamptz NOT NULL DEFAULT now(),
  keep_until  timestamptz NOT NULL,
  source      text        NOT NULL,
  event_id    text        NOT NULL,
  PRIMARY KEY (source, event_id),
  CONSTRAINT inbox_source_check CHECK (octet_length(source) BETWEEN 1 AND 1024),
  CONSTRAINT inbox_event_id_check CHECK (octet_length(event_id) BETWEEN 1 AND 1024),
  CONSTRAINT inbox_keep_until_check CHECK (isfinite(keep_until))
) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.inbox.keep_until
  IS 'relays delete the row after this time; a repetition is not noticed any more then';
CREATE INDEX IF NOT EXISTS inbox_keep_until ON outbox.inbox (keep_until);

INSERT INTO outbox.migration (version) VALUES (30) ON CONFLICT DO NOTHING;
