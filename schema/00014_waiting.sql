-- +goose Up
-- Pages of waiting tasks by id. Enqueueing waits while the index is built, which reads the table of tasks once; where that is large, build it before, with
-- CREATE INDEX CONCURRENTLY and all that follows, and this changes nothing.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00014_waiting.sql

-- The index of turns has the ordering key first, which not everybody may read. Statements that look for the next task of an ordering key must not take this one
-- for its order, nor pages that one: so each has a condition that does not imply the other's.
CREATE INDEX IF NOT EXISTS task_waiting_id ON outbox.task (task_type, task_id) WHERE state || '' = 'waiting';

INSERT INTO outbox.migration (version) VALUES (14) ON CONFLICT DO NOTHING;
