-- +goose Up
-- A group begins no task of a paused type.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00040_members.sql

-- As in 00033, but for pauses.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_member(place tid, idle_timeout text, lock_timeout text,
  statement_timeout text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  claimed boolean;
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true)
    || set_config('statement_timeout', statement_timeout, true)
    || set_config('outbox_group.counts', 'true', true);
BEGIN
  DELETE FROM outbox.task t WHERE t.ctid = place
     AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = t.task_type AND p.paused);
  claimed := FOUND;
  setting := set_config('outbox_group.counts', '', true);
  RETURN concat(pg_current_xact_id(), ' ', claimed);
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version, oldest_version) VALUES (40, 39) ON CONFLICT DO NOTHING;
