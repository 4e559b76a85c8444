-- Actions on one task, for apps and operators.

-- Deletes a task that waits, in the caller's transaction: canceled. A task that is leased or locked, as
-- it runs, is asked to end: requested. It waits for no lock of a run.
CREATE OR REPLACE FUNCTION outbox.cancel_task(task_id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state <> 'leased' FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    WITH gone AS (DELETE FROM outbox.task t WHERE t.task_id = $1 RETURNING t.task_type)
    INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, gone.task_type, 'canceled'
      FROM gone;
    RETURN 'canceled';
  END IF;
  PERFORM FROM outbox.task t WHERE t.task_id = $1;
  IF NOT FOUND THEN
    RETURN 'not_found';
  END IF;
  INSERT INTO outbox.cancel (task_id)
  SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM outbox.cancel c WHERE c.task_id = $1);
  RETURN 'requested';
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.cancel_task(bigint) FROM PUBLIC;

-- Makes a scheduled task ready now, as if its time had come: a relay that has it locked is doing just
-- that. Relays that sleep are woken by the commit: a task that becomes ready by an UPDATE sends no
-- wake-up by itself. Without a relay that asks to be woken it sends no NOTIFY, which PREPARE
-- TRANSACTION refuses. A session keeps its plan, also one that was made when no task was scheduled:
-- so the state is asked for in a way that no index of scheduled tasks fits.
CREATE OR REPLACE FUNCTION outbox.run_task_now(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'scheduled'
    FOR NO KEY UPDATE SKIP LOCKED;
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
REVOKE EXECUTE ON FUNCTION outbox.run_task_now(bigint) FROM PUBLIC;
