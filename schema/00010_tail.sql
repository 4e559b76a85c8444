-- +goose Up
-- outbox tail: the second, since 1970 by this server's clock, until which somebody looks at what relays do.
--
-- A relay of the version before tells nothing.
CREATE SEQUENCE IF NOT EXISTS outbox.tail AS bigint MINVALUE 0 START 0 NO CYCLE;
ALTER TABLE outbox.relay ADD COLUMN IF NOT EXISTS tells boolean NOT NULL DEFAULT false;

INSERT INTO outbox.migration (version, oldest_version) VALUES (10, 1) ON CONFLICT DO NOTHING;
