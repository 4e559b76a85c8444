-- +goose Up
-- The end of a run puts the session back: what a handler leaves behind in it, another task's handler must not find.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00018_sessions.sql

-- Deletes what the journal has of a task that is done, 0 for none, and returns the number that it was given and the transaction's id. It releases the
-- session's advisory locks, and says more where PREPARE has left a statement in this transaction, which no rollback takes back.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.end_run(number integer, done bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  DELETE FROM outbox.running r WHERE r.task_id = done;
  RETURN concat(number, ' ', pg_current_xact_id(), pg_advisory_unlock_all(),
    CASE WHEN EXISTS (SELECT 1 FROM pg_prepared_statements WHERE from_sql AND prepare_time >= now()) THEN ' left' END);
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (18) ON CONFLICT DO NOTHING;
