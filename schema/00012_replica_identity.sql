-- +goose Up
-- The outbox in a database that is published.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00012_replica_identity.sql

-- Beside a publication of all tables, or of this schema, PostgreSQL refuses to delete rows of a table that has no primary key, unless it is told what a
-- row is known by. The log of counts has none, as an index would cost each change of a task; so the squeeze failed there.
ALTER TABLE outbox.counter_log REPLICA IDENTITY FULL;

INSERT INTO outbox.migration (version) VALUES (12) ON CONFLICT DO NOTHING;
