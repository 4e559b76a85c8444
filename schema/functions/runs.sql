-- The journal of runs.

-- Reports whether the claim of a batch has ended, as far as the id of its transaction tells. It saves
-- comparing ids with those of open batches, and decides nothing: a relay that has claimed a task of a
-- batch knows that the batch's claim has ended, and the batch's ids decide whether it is such a task.
-- In a copy of the database in another cluster, by pg_dump or logical replication, the ids of
-- transactions mean nothing. An id that is not below the caller's own is of another cluster, and
-- pg_xact_status would raise an error. An id that another transaction has here is taken for an open
-- claim while that transaction lasts; its tasks run, and the lost run counts later or not at all.
CREATE OR REPLACE FUNCTION outbox.claim_ended(of_xid xid8) RETURNS boolean LANGUAGE sql
RETURN CASE WHEN of_xid < pg_current_xact_id()
  THEN pg_xact_status(of_xid) IS DISTINCT FROM 'in progress' ELSE true END;

-- Makes rows of single tasks of the rows of batches that were lost, where the caller has claimed any
-- of their tasks. A batch whose transaction is open cannot have been lost: its tasks are locked.
CREATE OR REPLACE FUNCTION outbox.split_lost(ids bigint[], first bigint, last bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET search_path = pg_catalog, pg_temp SET jit = off AS $$
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

-- Journals runs that are about to begin, of claimed tasks under their tokens, and returns the rows that
-- earlier runs of each left. A task with such rows is journalled only as a suspect that is about to
-- run: its process may be running another suspect now, whose death should cost this one nothing.
-- The commit is asynchronous: the journal must survive the death of a relay, not of the server, which
-- ends the claims as well.
CREATE OR REPLACE FUNCTION outbox.record_runs(ids bigint[], first bigint, last bigint,
  tokens uuid[], suspects boolean[], of_relay uuid)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET plan_cache_mode = force_generic_plan SET search_path = pg_catalog, pg_temp SET jit = off
  AS $$
DECLARE
  setting text := set_config('synchronous_commit', 'off', true);
BEGIN
  INSERT INTO outbox.running (task_id, token, relay_id) SELECT unnest(ids), unnest(tokens), of_relay
   WHERE NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = ANY (ids)
     AND r.task_ids IS NULL)
     AND NOT EXISTS (SELECT 1 FROM outbox.running r
                      WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
                        AND outbox.claim_ended(r.xid));
  IF FOUND THEN
    RETURN;
  END IF;
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
  INSERT INTO outbox.running (task_id, token, relay_id)
  SELECT n.task_id, n.token, of_relay
    FROM unnest(ids, tokens, suspects) AS n (task_id, token, suspect)
   WHERE n.suspect OR NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = n.task_id
     AND r.task_ids IS NULL);
END
$$;

-- The same for a batch, which is journalled only if none of its tasks has a history. The rows of
-- earlier runs are read by the range of the ids where it is narrow, and not by a search for each.
CREATE OR REPLACE FUNCTION outbox.record_batch(ids bigint[], first bigint, last bigint,
  of_token uuid, of_relay uuid, of_xid xid8)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET plan_cache_mode = force_generic_plan SET search_path = pg_catalog, pg_temp SET jit = off
  AS $$
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

-- Deletes what the journal has of a task that is done, 0 for none, and returns the number that it was
-- given and the transaction's id. It releases the session's advisory locks, and says more where
-- PREPARE has left a statement in this transaction, which no rollback takes back: what a handler
-- leaves behind in a session, another task's handler must not find.
CREATE OR REPLACE FUNCTION outbox.end_run(number integer, done bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  DELETE FROM outbox.running r WHERE r.task_id = done;
  RETURN concat(number, ' ', pg_current_xact_id(), pg_advisory_unlock_all(),
    CASE WHEN EXISTS (SELECT 1 FROM pg_prepared_statements WHERE from_sql
      AND prepare_time >= now()) THEN ' left' END);
END
$$;
