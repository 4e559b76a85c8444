-- +goose Up
-- Cheaper tasks. A claim of one task, the journal of runs and the end of a run are each one function that returns one value: for a single
-- task the columns of a result cost more than its rows. One trigger less for each task that is deleted, and cheaper ones for one that is
-- inserted.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00011_cheaper_tasks.sql

-- In what follows a session keeps its plans, also those that were made when the tables were empty; and while a forgotten transaction keeps vacuum
-- from its work, the table of tasks has many pages and, by its statistics, few rows, where the planner takes reading all of it for cheaper than an
-- index that has as many pages and a place to begin. So the functions leave it the index in its order only. And jit is off where plans are for numbers
-- that are not known, and seem dear beside a large backlog.

-- Deletes the first task of a lane from a place on, whose priority is at most the given one, and returns it, as text: NULL, or its fields
-- with U+001F between them, which no JSON has: task_id, priority, attempt, run_at and created_at in microseconds since 1970 (created_at is
-- empty where it equals run_at), the transaction's id, task_rest or nothing, and the payload. An index scan reads a leaf from the place on to its
-- end, and compares all; so it is bounded first, by so many ids. The settings are the transaction's, in milliseconds: the first two are made before
-- a row is locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.take_task(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint, near bigint,
  idle_timeout text, lock_timeout text, statement_timeout text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  place tid;
  taken text;
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true) || set_config('lock_timeout', lock_timeout, true);
BEGIN
  IF near > 0 THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND t.priority = from_priority AND t.attempt = from_attempt AND t.task_id >= from_id AND t.task_id <= from_id + near
     ORDER BY t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
  END IF;
  IF place IS NULL THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id) AND t.priority <= most
     ORDER BY t.priority, t.attempt, t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF place IS NULL THEN
      RETURN NULL;
    END IF;
  END IF;
  DELETE FROM outbox.task t WHERE t.ctid = place
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              pg_current_xact_id(), COALESCE(outbox.task_rest(t), ''), t.payload)
       INTO taken;
  setting := set_config('statement_timeout', statement_timeout, true);
  RETURN taken;
END
$$;
-- +goose StatementEnd

-- Deletes what the journal has of a task that is done, and returns the number that it was given and the transaction's id.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.end_run(number integer, done bigint) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
  DELETE FROM outbox.running r WHERE r.task_id = done;
  RETURN number || ' ' || pg_current_xact_id();
END
$$;
-- +goose StatementEnd

-- Journals runs that are about to begin, if no task has a history, and reports whether: else record_runs tells. Of batches, those whose claims
-- are open have none of these tasks. The commit is asynchronous, as there.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.begin_runs(ids bigint[], tokens uuid[], first bigint, last bigint, of_relay uuid) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  setting text := set_config('synchronous_commit', 'off', true);
BEGIN
  INSERT INTO outbox.running (task_id, token, relay_id)
  SELECT unnest(ids), unnest(tokens), of_relay
   WHERE NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = ANY (ids) AND r.task_ids IS NULL)
     AND NOT EXISTS (SELECT 1 FROM outbox.running r
                      WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last AND pg_xact_status(r.xid) IS DISTINCT FROM 'in progress');
  RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- The first task of an ordering key is gone, when this commits.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.end_turn(of_type text, key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.turn (task_type, ordering_key) VALUES (of_type, key);
  RETURN true;
END
$$;
-- +goose StatementEnd

-- Counts, and ends turns, in one statement: a trigger for each row, whose WHEN is prepared anew for every statement, costs a claim of one task
-- more than that.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT (-1)::bigint, 0::bigint, task_type, state FROM removed
   WHERE ordering_key IS NULL OR state = 'waiting' OR outbox.end_turn(task_type, ordering_key) LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind)
    SELECT -count(*), task_type, state FROM (SELECT task_type, state, ordering_key FROM removed OFFSET 3) AS rest
     WHERE ordering_key IS NULL OR state = 'waiting' OR outbox.end_turn(task_type, ordering_key) GROUP BY task_type, state;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd
DROP TRIGGER IF EXISTS task_next ON outbox.task;

REVOKE EXECUTE ON FUNCTION outbox.end_turn(text, text) FROM PUBLIC;

-- Counts, checks and wakes: one function for all of it, as a second one costs a single insert too much. The first three rows
-- are counted one by one, since an aggregate costs a single one as much as all the rest, and the others in sums (the scan of a
-- transition table has one order). A task that a relay writes back has been attempted; all others are new. What the conditions let
-- pass is legal by check_task, which returns true or fails; of the first three the ordinary ones, as each step of a condition costs
-- in every statement. What is selected has the types of the columns: casts above the LIMIT would be a node of the plan. NOTIFY takes a
-- lock that serialises commits, so it is sent only while a relay asks for it; the sequence is 0 while none does, which is known without the clock.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1::bigint, num_nulls(attempted_at)::bigint, task_type, state FROM added
   WHERE state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, timeout_ms, attempted_at) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity' AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
      OR outbox.check_task(task_id)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, state FROM (SELECT * FROM added OFFSET 3) AS rest
     WHERE (state IN ('ready', 'scheduled') OR state = 'waiting' AND ordering_key IS NOT NULL) AND attempt >= 0
       AND num_nonnulls(lease_token, leased_until) = 0
       AND (max_attempts > 0) IS NOT FALSE AND (timeout_ms > 0) IS NOT FALSE AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
       AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
       AND least(run_at, created_at, attempted_at) > '-infinity'
       AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
        OR outbox.check_task(task_id)
     GROUP BY task_type, state;
  END IF;
  IF pg_sequence_last_value('outbox.wake'::regclass) > 0 THEN
    IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
      PERFORM pg_notify(TG_TABLE_SCHEMA, '');
    END IF;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- CURRENT_TIMESTAMP is now(), and no function that each statement would look up.
CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.run_at > CURRENT_TIMESTAMP OR NEW.ordering_key IS NOT NULL OR NEW.unique_key IS NOT NULL)
  EXECUTE FUNCTION outbox.task_arrive();

-- Each entry of a lane has its task's id, so none equals another but for dead ones of the same task. Looking for equal ones before a page is split, as
-- PostgreSQL does unless told otherwise, saves no split and is work in every insert.
ALTER INDEX outbox.task_lane SET (deduplicate_items = off);

-- Deletes up to so many of the first tasks of a lane from a place on, whose priority is at most the given one, and returns each as text: its fields
-- with U+001F between them, which no JSON has: task_id, priority, attempt, run_at and created_at in microseconds since 1970 (created_at is empty
-- where it equals run_at), the transaction's id, task_rest or nothing, and the payload. What was locked is deleted by its place, which saves the search by id. The second
-- statement has a snapshot of its own, which sees what was updated before it was locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.take_tasks(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint, up_to integer) RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places tid[] := ARRAY(
    SELECT t.ctid FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id) AND t.priority <= most
     ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
  xid text;
BEGIN
  IF cardinality(places) = 0 THEN
    RETURN;
  END IF;
  xid := pg_current_xact_id();
  RETURN QUERY
  DELETE FROM outbox.task t WHERE t.ctid = ANY (places)
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              xid, COALESCE(outbox.task_rest(t), ''), t.payload);
END
$$;
-- +goose StatementEnd

-- Which lanes have work, and when the next scheduled task of each is due: two index probes for each type, and for the types of which much was
-- claimed one for each span of theirs. A span is all of some priorities or, of one, what follows a task up to an attempt: those an index scan begins and
-- ends at their bounds. The tasks in running are left out, as are types that are paused. Times are cut to 95 years, as a time.Duration ends at 292. A row
-- with i = 0 says that some ordering key may have no first task.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.look(
  types text[], running bigint[], span_types bigint[], first_priorities smallint[], first_attempts smallint[], first_ids bigint[],
  last_priorities smallint[], last_attempts smallint[])
RETURNS TABLE (i bigint, task_id bigint, priority smallint, attempt smallint, age bigint, due_in bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY
  WITH given AS MATERIALIZED (
    SELECT g.of_type, g.n FROM unnest(types) WITH ORDINALITY AS g (of_type, n)
     WHERE g.of_type <> ALL (ARRAY(SELECT p.task_type FROM outbox.task_type p WHERE p.paused)))
  SELECT g.n, h.task_id, h.priority, h.attempt, (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint,
         (LEAST(extract(epoch FROM s.run_at - clock_timestamp()), 3e9) * 1000000)::bigint
    FROM given g
    LEFT JOIN LATERAL (
      SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type AND t.task_id NOT IN (SELECT unnest(running)) AND g.n <> ALL (span_types)
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1) h ON true
    LEFT JOIN LATERAL (
      SELECT t.run_at FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type = g.of_type
       ORDER BY t.run_at LIMIT 1) s ON true
   WHERE h.task_id IS NOT NULL OR s.run_at IS NOT NULL
   UNION ALL
  SELECT g.n, h.task_id, h.priority, h.attempt, (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint, NULL
    FROM unnest(span_types, first_priorities, first_attempts, first_ids, last_priorities, last_attempts)
           AS span (n, first_priority, first_attempt, first_id, last_priority, last_attempt)
    JOIN given g ON g.n = span.n
   CROSS JOIN LATERAL (
     (SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type AND t.task_id NOT IN (SELECT unnest(running)) AND span.first_priority < span.last_priority
         AND t.priority BETWEEN span.first_priority AND span.last_priority
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1)
      UNION ALL
     (SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type AND t.task_id NOT IN (SELECT unnest(running)) AND span.first_priority = span.last_priority
         AND t.priority = span.first_priority AND (t.attempt, t.task_id) >= (span.first_attempt, span.first_id) AND t.attempt <= span.last_attempt
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1)) h
   UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL WHERE (SELECT u.turn_id FROM outbox.turn u ORDER BY u.turn_id LIMIT 1) IS NOT NULL;
END
$$;
-- +goose StatementEnd

-- As before, but what earlier runs left is read by the range of the ids where it is narrow, and not by a search for each.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.record_batch(ids bigint[], first bigint, last bigint, of_token uuid, of_relay uuid, of_xid xid8)
RETURNS TABLE (task_id bigint, token text, not_died boolean, alive_us bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  history boolean;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF EXISTS (SELECT 1 FROM outbox.running r
              WHERE r.task_ids IS NOT NULL AND r.last_id >= first AND r.first_id <= last AND pg_xact_status(r.xid) IS DISTINCT FROM 'in progress') THEN
    PERFORM outbox.split_lost(ids, first, last);
  END IF;
  IF last - first < 10 * cardinality(ids) THEN
    history := EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id BETWEEN first AND last AND r.task_ids IS NULL AND array_position(ids, r.task_id) > 0);
  ELSE
    history := EXISTS (SELECT 1 FROM outbox.running r WHERE r.task_id = ANY (ids) AND r.task_ids IS NULL);
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

-- Leased tasks are reached by their place (ctid) as well, which saves the way through an index, a large part of the work of a claim and of an end. A place
-- is that of one version of a row: another transaction may have moved the task, and another task may be there by now.

-- Leases up to most tasks of a type: if there are pivots, up to lead from each on, whose priority is at most theirs, and then from a place in the
-- lane on. As in take_task, a pivot's scan is bounded first, by so many ids; for what is missing then it is not. It counts their attempts, but not that of a task that a process died of, which may have to wait for another one.
-- leased_until is what the task's own timeout gives with timeout_us a millisecond and margin_us, or registered_us from now.
--
-- The locks come first, in a statement of their own: the next one sees what each row is like under its lock.
--
-- tasks has a line for each task, in no order, with what columns have as text, separated by tabs, NULL as nothing: task_id, place, priority,
-- attempt, run_at and (if it is not the same) created_at in microseconds since 1970, the relay that died while it ran the task, the payload,
-- task_rest. No column has a tab or the end of a line in its text: JSON writes them as \t and \n in strings.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.lease_tasks(
  of_type text, most integer, of_relay uuid, of_token uuid, registered_us bigint, timeout_us bigint, margin_us bigint,
  from_priority smallint, from_attempt smallint, from_id bigint,
  pivots bigint[], pivot_priority smallint, pivot_attempt smallint, lead integer, near bigint,
  OUT tasks text, OUT xid text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places      tid[];
  lost_ids    bigint[];
  lost_relays uuid[];
  lines       text;
  n           integer;
  pass        integer := CASE WHEN cardinality(pivots) > 0 THEN 1 ELSE 3 END;
BEGIN
  LOOP
    IF pass = 1 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL), array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
                    AND t.priority = pivot_priority AND t.attempt = pivot_attempt AND t.task_id >= p.task_id AND t.task_id <= p.task_id + near
                  ORDER BY t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSIF pass = 2 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL), array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
                    AND (t.priority, t.attempt, t.task_id) >= (pivot_priority, pivot_attempt, p.task_id) AND t.priority <= pivot_priority
                  ORDER BY t.priority, t.attempt, t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSE
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL), array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
               ORDER BY t.priority, t.attempt, t.task_id LIMIT most FOR UPDATE SKIP LOCKED) f;
    END IF;
    IF places IS NOT NULL THEN
      WITH leased AS (
        UPDATE outbox.task t
           SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END,
               attempted_at = clock_timestamp(), relay_id = of_relay, lease_token = of_token,
               leased_until = clock_timestamp() + COALESCE(t.timeout_ms * timeout_us + margin_us, registered_us) * interval '1 microsecond'
         WHERE t.ctid = ANY (places)
        RETURNING concat_ws(E'\t', t.task_id, t.ctid, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
                    CASE WHEN t.created_at <> t.run_at THEN ((date_part('epoch', t.created_at) * 1000000)::bigint)::text ELSE '' END,
                    CASE WHEN lost_ids IS NULL THEN '' ELSE COALESCE(lost_relays[array_position(lost_ids, t.task_id)]::text, '') END,
                    t.payload, COALESCE(outbox.task_rest(t), '')) AS line)
      SELECT string_agg(line, E'\n'), count(*) INTO lines, n FROM leased;
      tasks := concat_ws(E'\n', tasks, lines);
      most := most - n;
      xid := pg_current_xact_id()::text;
    END IF;
    EXIT WHEN most <= 0 OR pass = 3;
    pass := pass + 1;
  END LOOP;
END
$$;
-- +goose StatementEnd

-- Deletes leased tasks that are done, each under its token, and returns those that it had not to delete: their leases are lost. The ids ascend; the
-- n-th has the place and the nth[n]-th token. A second statement is for those that were moved, as by task.Extend. Who holds
-- a row for longer must not hold up the others. The time is longer than deadlock_timeout, after which PostgreSQL ends a deadlock in a better way.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.finish_tasks(ids bigint[], places tid[], tokens uuid[], nth integer[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET lock_timeout = '2s' SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  gone bigint[];
  more bigint[];
BEGIN
  WITH d AS (
    DELETE FROM outbox.task t
     WHERE t.ctid = ANY (places) AND t.task_id = ids[width_bucket(t.task_id, ids)] AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]
    RETURNING t.task_id)
  SELECT array_agg(d.task_id) INTO gone FROM d;
  IF cardinality(gone) = cardinality(ids) THEN
    RETURN;
  END IF;
  WITH d AS (
    DELETE FROM outbox.task t
     WHERE t.task_id = ANY (ids) AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]
    RETURNING t.task_id)
  SELECT array_agg(d.task_id) INTO more FROM d;
  RETURN QUERY SELECT i FROM unnest(ids) AS i WHERE i <> ALL (COALESCE(gone, '{}')) AND i <> ALL (COALESCE(more, '{}'));
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (11) ON CONFLICT DO NOTHING;
