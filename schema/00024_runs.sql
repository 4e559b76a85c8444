-- +goose Up
-- The journal of runs, and functions that cancel a task or run it at once.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00024_runs.sql

-- The journal of runs inside claims that are not committed yet. The claim deletes the rows of its
-- tasks when it ends with a result; a row that stays is a run that was lost. A batch has one row,
-- whose task_id is one of its tasks.
CREATE TABLE IF NOT EXISTS outbox.running (
  task_id         bigint      NOT NULL,
  token           uuid        NOT NULL,
  relay_id        uuid        NOT NULL,
  lost_connection boolean     NOT NULL DEFAULT false,
  started_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  task_ids        bigint[],
  first_id        bigint,
  last_id         bigint,
  xid             xid8,
  PRIMARY KEY (task_id, token)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE outbox.running ALTER COLUMN task_ids SET STORAGE EXTERNAL;
COMMENT ON COLUMN outbox.running.task_ids IS 'a batch: all its tasks; NULL: the one task';
COMMENT ON COLUMN outbox.running.xid      IS 'a batch: the transaction of its claim';
CREATE INDEX IF NOT EXISTS running_batch ON outbox.running (last_id) WHERE task_ids IS NOT NULL;

-- Reports whether the claim of a batch has ended, as far as the id of its transaction tells. It
-- saves comparing ids with those of open batches, and decides nothing: who has claimed a task of a
-- batch knows that the batch's claim has ended, and whether it is one is decided by the batch's
-- ids. In a copy of the database in another cluster, by pg_dump or logical replication, the ids of
-- transactions mean nothing. One that is not below the caller's own is of another cluster, and
-- pg_xact_status would raise an error. One that another transaction has here is taken for an open
-- claim while that transaction lasts; its tasks run, and the lost run counts later or not at all.
CREATE OR REPLACE FUNCTION outbox.claim_ended(of_xid xid8) RETURNS boolean LANGUAGE sql
RETURN CASE WHEN of_xid < pg_current_xact_id()
  THEN pg_xact_status(of_xid) IS DISTINCT FROM 'in progress' ELSE true END;

-- Rows of batches that were lost become rows of single tasks, where the caller has claimed any of
-- these. One whose transaction is open cannot have been lost: its tasks are locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.split_lost(ids bigint[], first bigint, last bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  WITH gone AS (
    DELETE FROM outbox.running r
     WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
       AND outbox.claim_ended(r.xid) AND r.task_ids && ids
    RETURNING r.*)
  INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, started_at)
  SELECT unnest(g.task_ids), g.token, g.relay_id, g.lost_connection, g.started_at FROM gone g;
END
$$;
-- +goose StatementEnd

-- Journals runs that are about to begin, if no task has a history, and reports whether: else
-- record_runs tells. Of batches, those whose claims are open have none of these tasks. The commit
-- is asynchronous: the journal must survive the death of a relay, not of the server, which ends the
-- claims as well.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.begin_runs(ids bigint[], tokens uuid[], first bigint,
  last bigint, of_relay uuid) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
  SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  setting text := set_config('synchronous_commit', 'off', true);
BEGIN
  INSERT INTO outbox.running (task_id, token, relay_id)
  SELECT unnest(ids), unnest(tokens), of_relay
   WHERE NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = ANY (ids)
     AND r.task_ids IS NULL)
     AND NOT EXISTS (SELECT 1 FROM outbox.running r
                      WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
                        AND outbox.claim_ended(r.xid));
  RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- Journals runs that are about to begin, of claimed tasks under their tokens, and returns what
-- earlier runs left of each. A task with such is journalled only as a suspect that is about to run:
-- its process may be running another suspect now, whose death should cost this one nothing.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.record_runs(ids bigint[], first bigint, last bigint,
  tokens uuid[], suspects boolean[], of_relay uuid)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
  SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT 1 FROM outbox.running r
              WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
                AND outbox.claim_ended(r.xid)) THEN
    PERFORM outbox.split_lost(ids, first, last);
  END IF;
  RETURN QUERY
  SELECT r.task_id, r.token::text, r.relay_id = of_relay OR r.lost_connection,
         COALESCE((extract(epoch FROM l.alive_until - clock_timestamp()) * 1000000)::bigint, 0)
    FROM outbox.running r LEFT JOIN outbox.relay l ON l.relay_id = r.relay_id
   WHERE r.task_id = ANY (ids) AND r.task_ids IS NULL;
  IF FOUND THEN
    INSERT INTO outbox.running (task_id, token, relay_id)
    SELECT n.task_id, n.token, of_relay
      FROM unnest(ids, tokens, suspects) AS n (task_id, token, suspect)
     WHERE n.suspect OR NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = n.task_id
       AND r.task_ids IS NULL);
  ELSE
    INSERT INTO outbox.running (task_id, token, relay_id) SELECT n.task_id, n.token, of_relay
      FROM unnest(ids, tokens) AS n (task_id, token);
  END IF;
END
$$;
-- +goose StatementEnd

-- The same for a batch, which is journalled only if none of its tasks has a history. What earlier
-- runs left is read by the range of the ids where it is narrow, and not by a search for each.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.record_batch(ids bigint[], first bigint, last bigint,
  of_token uuid, of_relay uuid, of_xid xid8)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
  SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  history boolean;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT 1 FROM outbox.running r
              WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
                AND outbox.claim_ended(r.xid)) THEN
    PERFORM outbox.split_lost(ids, first, last);
  END IF;
  IF last - first < 10 * cardinality(ids) THEN
    history := EXISTS (SELECT 1 FROM outbox.running r
      WHERE r.task_id BETWEEN first AND last AND r.task_ids IS NULL
      AND array_position(ids, r.task_id) > 0);
  ELSE
    history := EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = ANY (ids)
      AND r.task_ids IS NULL);
  END IF;
  IF history THEN
    RETURN QUERY
    SELECT r.task_id, r.token::text, r.relay_id = of_relay OR r.lost_connection,
           COALESCE((extract(epoch FROM l.alive_until - clock_timestamp()) * 1000000)::bigint, 0)
      FROM outbox.running r LEFT JOIN outbox.relay l ON l.relay_id = r.relay_id
     WHERE r.task_id = ANY (ids) AND r.task_ids IS NULL;
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
  VALUES (first, of_token, of_relay, ids, first, last, of_xid);
END
$$;
-- +goose StatementEnd

-- Deletes what the journal has of a task that is done, 0 for none, and returns the number that it
-- was given and the transaction's id. It releases the session's advisory locks, and says more where
-- PREPARE has left a statement in this transaction, which no rollback takes back: what a handler
-- leaves behind in a session, another task's handler must not find.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.end_run(number integer, done bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  DELETE FROM outbox.running r WHERE r.task_id = done;
  RETURN concat(number, ' ', pg_current_xact_id(), pg_advisory_unlock_all(),
    CASE WHEN EXISTS (SELECT 1 FROM pg_prepared_statements WHERE from_sql
      AND prepare_time >= now()) THEN ' left' END);
END
$$;
-- +goose StatementEnd

-- A task that waits is deleted in the caller's transaction: canceled. One that is leased or locked,
-- as it runs, is asked to end: requested. It waits for no lock of a run.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.cancel_task(task_id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    RETURN 'not found';
  END IF;
  INSERT INTO outbox.cancel (task_id)
  SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM outbox.cancel c WHERE c.task_id = $1);
  RETURN 'requested';
END
$$;
-- +goose StatementEnd

-- A scheduled task becomes ready now, as if its time had come: a relay that has it locked is doing
-- just that. Relays that sleep are woken by the commit: what becomes ready by an UPDATE sends no
-- wake-up by itself. Without a relay that asks to be woken it sends no NOTIFY, which PREPARE
-- TRANSACTION refuses. A session keeps its plan, also one that was made when no task was scheduled:
-- so the state is asked for in a way that no index of scheduled tasks fits.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.run_task_now(task_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET jit = off AS $$
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
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.cancel_task(bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.run_task_now(bigint) FROM PUBLIC;

INSERT INTO outbox.migration (version) VALUES (24) ON CONFLICT DO NOTHING;
