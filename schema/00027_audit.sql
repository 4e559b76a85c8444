-- +goose Up
-- The audit entries of one task are found by an index.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00027_audit.sql

CREATE INDEX IF NOT EXISTS audit_target_idx ON outbox.audit (target COLLATE "C");

INSERT INTO outbox.migration (version) VALUES (27) ON CONFLICT DO NOTHING;
