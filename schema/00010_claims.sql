-- +goose Up
-- Claims of single tasks and the journal of runs as functions, which keep their plans; a batch is one row in the journal.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00010_claims.sql

-- What few tasks have, for whoever claims one: NULL, or the columns as a JSON array.
CREATE OR REPLACE FUNCTION outbox.task_rest(t outbox.task) RETURNS text LANGUAGE sql STABLE
RETURN CASE
  WHEN num_nonnulls(t.max_attempts, t.headers, t.last_error, t.unique_key, t.timeout_ms, t.ordering_key) = 0
   AND (t.attempted_at IS NULL OR t.state = 'leased') AND NOT (t.iterations > 0 OR t.unique_until_done OR t.skip_failed) THEN NULL
  ELSE json_build_array((extract(epoch FROM t.attempted_at) * 1000000)::bigint, t.max_attempts, t.headers, t.last_error,
         t.unique_key, t.unique_until_done, t.timeout_ms, t.iterations, t.ordering_key, t.skip_failed)::text
END;

-- enable_seqscan is off in what follows because a session keeps its plans, also those made when the tables were empty.

-- Deletes the first task of a lane from a place on, whose priority is at most the given one. Without a task task_id is NULL. Times are
-- microseconds since 1970; created_at is NULL where it equals run_at.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_task(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
  OUT task_id bigint, OUT payload text, OUT priority smallint, OUT attempt smallint,
  OUT run_at bigint, OUT created_at bigint, OUT rest text, OUT xid text)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  found_id bigint;
BEGIN
  SELECT t.task_id INTO found_id FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
     AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id) AND t.priority <= most
   ORDER BY t.priority, t.attempt, t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF found_id IS NULL THEN
    RETURN;
  END IF;
  DELETE FROM outbox.task t WHERE t.task_id = found_id
  RETURNING t.task_id, t.payload::text, t.priority, t.attempt,
            (date_part('epoch', t.run_at) * 1000000)::bigint,
            CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint END,
            outbox.task_rest(t), pg_current_xact_id()::text
       INTO claim_task.task_id, claim_task.payload, claim_task.priority, claim_task.attempt,
            claim_task.run_at, claim_task.created_at, claim_task.rest, claim_task.xid;
END
$$;
-- +goose StatementEnd

-- The row of a batch: task_id is one of its tasks.
ALTER TABLE outbox.running
  ADD COLUMN IF NOT EXISTS task_ids bigint[],
  ADD COLUMN IF NOT EXISTS first_id bigint,
  ADD COLUMN IF NOT EXISTS last_id  bigint,
  ADD COLUMN IF NOT EXISTS xid      xid8;
ALTER TABLE outbox.running ALTER COLUMN task_ids SET STORAGE EXTERNAL;
COMMENT ON COLUMN outbox.running.task_ids IS 'a batch: all its tasks; NULL: the one task';
COMMENT ON COLUMN outbox.running.xid      IS 'a batch: the transaction of its claim';
CREATE INDEX IF NOT EXISTS running_batch ON outbox.running (last_id) WHERE task_ids IS NOT NULL;

-- Rows of batches that were lost become rows of single tasks, where the caller has claimed any of these. One whose transaction
-- is open cannot have been lost: its tasks are locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.split_lost(ids bigint[], first bigint, last bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  WITH gone AS (
    DELETE FROM outbox.running r
     WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last
       AND pg_xact_status(r.xid) IS DISTINCT FROM 'in progress' AND r.task_ids && ids
    RETURNING r.*)
  INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, started_at)
  SELECT unnest(g.task_ids), g.token, g.relay_id, g.lost_connection, g.started_at FROM gone g;
END
$$;
-- +goose StatementEnd

-- Journals runs that are about to begin, of claimed tasks under their tokens, and returns what earlier runs left of each. A task
-- with such is journalled only as a suspect that is about to run: its process may be running another suspect now, whose
-- death should cost this one nothing. The commit is asynchronous: the journal must survive the death of a relay, not of the
-- server, which ends the claims as well.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.record_runs(ids bigint[], first bigint, last bigint, tokens uuid[], suspects boolean[], of_relay uuid)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT 1 FROM outbox.running r
              WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last AND pg_xact_status(r.xid) IS DISTINCT FROM 'in progress') THEN
    PERFORM outbox.split_lost(ids, first, last);
  END IF;
  RETURN QUERY
  SELECT r.task_id, r.token::text, r.relay_id = of_relay OR r.lost_connection,
         COALESCE((extract(epoch FROM l.alive_until - clock_timestamp()) * 1000000)::bigint, 0)
    FROM outbox.running r LEFT JOIN outbox.relay l ON l.relay_id = r.relay_id
   WHERE r.task_id = ANY (ids) AND r.task_ids IS NULL;
  IF FOUND THEN
    INSERT INTO outbox.running (task_id, token, relay_id)
    SELECT n.task_id, n.token, of_relay FROM unnest(ids, tokens, suspects) AS n (task_id, token, suspect)
     WHERE n.suspect OR NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = n.task_id AND r.task_ids IS NULL);
  ELSE
    INSERT INTO outbox.running (task_id, token, relay_id) SELECT n.task_id, n.token, of_relay FROM unnest(ids, tokens) AS n (task_id, token);
  END IF;
END
$$;
-- +goose StatementEnd

-- The same for a batch, which is journalled only if none of its tasks has a history.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.record_batch(ids bigint[], first bigint, last bigint, of_token uuid, of_relay uuid, of_xid xid8)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT 1 FROM outbox.running r
              WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last AND pg_xact_status(r.xid) IS DISTINCT FROM 'in progress') THEN
    PERFORM outbox.split_lost(ids, first, last);
  END IF;
  RETURN QUERY
  SELECT r.task_id, r.token::text, r.relay_id = of_relay OR r.lost_connection,
         COALESCE((extract(epoch FROM l.alive_until - clock_timestamp()) * 1000000)::bigint, 0)
    FROM outbox.running r LEFT JOIN outbox.relay l ON l.relay_id = r.relay_id
   WHERE r.task_id BETWEEN first AND last AND r.task_ids IS NULL AND r.task_id = ANY (ids);
  IF NOT FOUND THEN
    INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
    VALUES (first, of_token, of_relay, ids, first, last, of_xid);
  END IF;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (10) ON CONFLICT DO NOTHING;
