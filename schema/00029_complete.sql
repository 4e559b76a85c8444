-- +goose Up
-- task.Complete deletes its task by a function, whose plan a session keeps.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00029_complete.sql

-- Deletes a leased task under its token, and returns the transaction's id and when the attempt began,
-- in microseconds since 1970; NULL if the lease is lost. The settings are the transaction's, and made
-- before the row is locked. They bound what the app does then, whose row must not stay locked for
-- long. As with claim_task, triggers of the app have the caller's search_path.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.complete_task(of_id bigint, of_token uuid) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  taken   text;
  setting text := set_config('idle_in_transaction_session_timeout', '60s', true)
    || set_config('statement_timeout', '30s', true) || set_config('lock_timeout', '10s', true);
BEGIN
  DELETE FROM outbox.task t WHERE t.task_id = of_id AND t.lease_token = of_token
  RETURNING concat(pg_current_xact_id(), ' ', (date_part('epoch', t.attempted_at) * 1000000)::bigint)
       INTO taken;
  RETURN taken;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (29) ON CONFLICT DO NOTHING;
