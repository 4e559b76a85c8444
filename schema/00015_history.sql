-- +goose Up
-- Pages of the history of a type, by id. Handlers with Keep wait while the index is built, which reads the history once; where that is large, build it before,
-- with CREATE INDEX CONCURRENTLY and all that follows, and this changes nothing.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00015_history.sql

CREATE INDEX IF NOT EXISTS done_task_type ON outbox.done_task (task_type, task_id);

INSERT INTO outbox.migration (version) VALUES (15) ON CONFLICT DO NOTHING;
