-- +goose Up
-- Functions that have settings have a search_path of their own, and run_task_now notifies only relays that ask for it.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00017_settings.sql

-- Functions that relays call, and name everything by its schema. pg_temp comes last, so that no temporary object is
-- taken for one of PostgreSQL's. A migration that replaces one of them writes its search_path again. Those that
-- delete or update tasks keep the caller's, as triggers of the app on outbox.task run inside of them.
-- +goose StatementBegin
DO $$
DECLARE
  statement text;
BEGIN
  FOR statement IN
    SELECT format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', p.oid::regprocedure)
      FROM pg_proc p JOIN pg_class c ON c.relowner = p.proowner
     WHERE c.oid = 'outbox.migration'::regclass
       AND p.pronamespace = 'outbox'::regnamespace
       AND p.prokind = 'f'
       AND p.proconfig IS NOT NULL
       AND p.proname <> ALL ('{take_task,take_tasks,claim_task,lease_tasks,finish_tasks}')
       AND array_to_string(p.proconfig, ' ') !~ '\msearch_path='
  LOOP
    EXECUTE statement;
  END LOOP;
END
$$;
-- +goose StatementEnd

-- As before, but without a relay that asks to be woken it sends no NOTIFY, which PREPARE TRANSACTION refuses.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.run_task_now(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'scheduled' FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE outbox.task t SET state = 'ready', run_at = LEAST(t.run_at, now()) WHERE t.task_id = $1;
  IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
    PERFORM pg_notify(n.nspname, '')
       FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE c.oid = 'outbox.wake'::regclass;
  END IF;
  RETURN true;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (17) ON CONFLICT DO NOTHING;
