-- +goose Up
-- What relays call to find tasks, claim them, lease them and finish leased ones.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00023_claims.sql

-- A session keeps the plans of these functions, also those made when the tables were empty. While a
-- forgotten transaction keeps vacuum from its work, the table of tasks has many pages and, by its
-- statistics, few rows. The planner then takes reading all of it for cheaper than an index that has
-- as many pages and a place to begin. So the functions leave it the index in its order only. jit is
-- off where plans are for numbers that are not known, and seem dear beside a large backlog.
-- Functions that delete or update tasks keep the caller's search_path, as triggers of the app on
-- outbox.task run inside of them.

-- What few tasks have, for whoever claims one: NULL, or the columns as a JSON array.
CREATE OR REPLACE FUNCTION outbox.optional_columns(t outbox.task) RETURNS text LANGUAGE sql STABLE
RETURN CASE
  WHEN num_nonnulls(t.max_attempts, t.headers, t.last_error, t.unique_key, t.timeout_ms,
    t.ordering_key) = 0
   AND (t.attempted_at IS NULL OR t.state = 'leased')
     AND NOT (t.iterations > 0 OR t.unique_until_done OR t.skip_failed) THEN NULL
  ELSE json_build_array((extract(epoch FROM t.attempted_at) * 1000000)::bigint, t.max_attempts,
    t.headers, t.last_error,
         t.unique_key, t.unique_until_done, t.timeout_ms, t.iterations, t.ordering_key,
           t.skip_failed)::text
END;

-- Which lanes have work, and when the next scheduled task of each is due: two index probes for each
-- type, and for the types of which much was claimed one for each span of theirs. A span is all of
-- some priorities or, of one, what follows a task up to an attempt: those an index scan begins and
-- ends at their bounds. The tasks in running are left out, as are types that are paused. Times are
-- cut to 95 years, as a time.Duration ends at 292. A row with i = 0 says that some ordering key may
-- have no head.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.poll(
  types text[], running bigint[], span_types bigint[], first_priorities smallint[],
    first_attempts smallint[], first_ids bigint[],
  last_priorities smallint[], last_attempts smallint[])
RETURNS TABLE (i bigint, task_id bigint, priority smallint, attempt smallint, age bigint,
  due_in bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET jit = off SET plan_cache_mode = force_generic_plan SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY
  WITH given AS MATERIALIZED (
    SELECT g.of_type, g.n FROM unnest(types) WITH ORDINALITY AS g (of_type, n)
     WHERE g.of_type <> ALL (ARRAY(SELECT p.task_type FROM outbox.task_type p WHERE p.paused)))
  SELECT g.n, h.task_id, h.priority, h.attempt,
    (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint,
         (LEAST(extract(epoch FROM s.run_at - clock_timestamp()), 3e9) * 1000000)::bigint
    FROM given g
    LEFT JOIN LATERAL (
      SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type
         AND t.task_id NOT IN (SELECT unnest(running)) AND g.n <> ALL (span_types)
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1) h ON true
    LEFT JOIN LATERAL (
      SELECT t.run_at FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type = g.of_type
       ORDER BY t.run_at LIMIT 1) s ON true
   WHERE h.task_id IS NOT NULL OR s.run_at IS NOT NULL
   UNION ALL
  SELECT g.n, h.task_id, h.priority, h.attempt,
    (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint, NULL
    FROM unnest(span_types, first_priorities, first_attempts, first_ids, last_priorities,
      last_attempts)
           AS span (n, first_priority, first_attempt, first_id, last_priority, last_attempt)
    JOIN given g ON g.n = span.n
   CROSS JOIN LATERAL (
     (SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type
         AND t.task_id NOT IN (SELECT unnest(running)) AND span.first_priority < span.last_priority
         AND t.priority BETWEEN span.first_priority AND span.last_priority
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1)
      UNION ALL
     (SELECT t.priority, t.attempt, t.task_id, t.run_at FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = g.of_type
         AND t.task_id NOT IN (SELECT unnest(running)) AND span.first_priority = span.last_priority
         AND t.priority = span.first_priority
           AND (t.attempt, t.task_id) >= (span.first_attempt, span.first_id)
           AND t.attempt <= span.last_attempt
       ORDER BY t.priority, t.attempt, t.task_id LIMIT 1)) h
   UNION ALL
  SELECT 0, NULL, NULL, NULL, NULL, NULL
   WHERE (SELECT u.headless_key_id FROM outbox.headless_key u
           ORDER BY u.headless_key_id LIMIT 1) IS NOT NULL;
END
$$;
-- +goose StatementEnd

-- Deletes the first task of a lane from a place on, whose priority is at most the given one, and
-- returns it, as text: NULL, or its fields with U+001F between them, which no JSON has: task_id,
-- priority, attempt, run_at and created_at in microseconds since 1970 (created_at is empty where it
-- equals run_at), the transaction's id, optional_columns or nothing, and the payload. An index scan
-- reads a leaf from the place on to its end, and compares all; so it is bounded first, by so many
-- ids. The settings are the transaction's, in milliseconds: the first two are made before a row is
-- locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_task(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
    id_span bigint,
  idle_timeout text, lock_timeout text, statement_timeout text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  place tid;
  taken text;
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true);
BEGIN
  IF id_span > 0 THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND t.priority = from_priority AND t.attempt = from_attempt AND t.task_id >= from_id
         AND t.task_id <= from_id + id_span
     ORDER BY t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
  END IF;
  IF place IS NULL THEN
    SELECT t.ctid INTO place FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
         AND t.priority <= most
     ORDER BY t.priority, t.attempt, t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF place IS NULL THEN
      RETURN NULL;
    END IF;
  END IF;
  DELETE FROM outbox.task t WHERE t.ctid = place
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt,
    (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at
                THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              pg_current_xact_id(), COALESCE(outbox.optional_columns(t), ''), t.payload)
       INTO taken;
  setting := set_config('statement_timeout', statement_timeout, true);
  RETURN taken;
END
$$;
-- +goose StatementEnd

-- Deletes up to so many of the first tasks of a lane, and returns each as claim_task does. What was
-- locked is deleted by its place (ctid), which saves the search by id. The second statement has a
-- snapshot of its own, which sees what was updated before it was locked.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_tasks(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
    up_to integer) RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places tid[] := ARRAY(
    SELECT t.ctid FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
       AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
         AND t.priority <= most
     ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
  xid text;
BEGIN
  IF cardinality(places) = 0 THEN
    RETURN;
  END IF;
  xid := pg_current_xact_id();
  RETURN QUERY
  DELETE FROM outbox.task t WHERE t.ctid = ANY (places)
  RETURNING concat_ws(E'\x1f', t.task_id, t.priority, t.attempt,
    (date_part('epoch', t.run_at) * 1000000)::bigint,
              CASE WHEN t.created_at <> t.run_at
                THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
              xid, COALESCE(outbox.optional_columns(t), ''), t.payload);
END
$$;
-- +goose StatementEnd

-- Leases up to most tasks of a type: if there are pivots, up to lead from each on, whose priority
-- is at most theirs, and then from a place in the lane on. As in claim_task, a pivot's scan is
-- bounded first, by so many ids; for what is missing then it is not. It counts their attempts, but
-- not that of a task that a process died of, which may have to wait for another one. leased_until
-- is what the task's own timeout gives with timeout_us a millisecond and margin_us, or
-- registered_us from now.
--
-- The locks come first, in a statement of their own: the next one sees what each row is like under
-- its lock, and reaches it by its place. A place is that of one version of a row: another
-- transaction may have moved the task, and another may be there by now.
--
-- tasks has a line for each task, in no order, with what columns have as text, separated by tabs,
-- NULL as nothing: task_id, place, priority, attempt, run_at and (if it is not the same) created_at
-- in microseconds since 1970, the relay that died while it ran the task, the payload,
-- optional_columns. No column has a tab or the end of a line in its text: JSON writes them as \t
-- and \n in strings.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.lease_tasks(
  of_type text, most integer, of_relay uuid, of_token uuid, registered_us bigint,
    timeout_us bigint, margin_us bigint,
  from_priority smallint, from_attempt smallint, from_id bigint,
  pivots bigint[], pivot_priority smallint, pivot_attempt smallint, lead integer, id_span bigint,
  OUT tasks text, OUT xid text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
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
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
                  WHERE t.state = 'ready' AND t.task_type = of_type
                    AND t.priority = pivot_priority AND t.attempt = pivot_attempt
                    AND t.task_id >= p.task_id AND t.task_id <= p.task_id + id_span
                  ORDER BY t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSIF pass = 2 THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT l.place, l.task_id, l.relay_id FROM unnest(pivots) AS p (task_id)
               CROSS JOIN LATERAL (
                 SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
                  WHERE t.state = 'ready' AND t.task_type = of_type
                    AND (t.priority, t.attempt, t.task_id)
                     >= (pivot_priority, pivot_attempt, p.task_id)
                    AND t.priority <= pivot_priority
                  ORDER BY t.priority, t.attempt, t.task_id LIMIT lead FOR UPDATE SKIP LOCKED) l
               LIMIT most) f;
    ELSE
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
          WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
               ORDER BY t.priority, t.attempt, t.task_id LIMIT most FOR UPDATE SKIP LOCKED) f;
    END IF;
    IF places IS NOT NULL THEN
      WITH leased AS (
        UPDATE outbox.task t
           SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL
             THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END,
               attempted_at = clock_timestamp(), relay_id = of_relay, lease_token = of_token,
               leased_until = clock_timestamp() + COALESCE(t.timeout_ms * timeout_us + margin_us,
                 registered_us) * interval '1 microsecond'
         WHERE t.ctid = ANY (places)
        RETURNING concat_ws(E'\t', t.task_id, t.ctid, t.priority, t.attempt,
          (date_part('epoch', t.run_at) * 1000000)::bigint,
                    CASE WHEN t.created_at <> t.run_at
                      THEN ((date_part('epoch', t.created_at) * 1000000)::bigint)::text ELSE '' END,
                    CASE WHEN lost_ids IS NULL THEN ''
                      ELSE COALESCE(lost_relays[array_position(lost_ids, t.task_id)]::text, '') END,
                    t.payload, COALESCE(outbox.optional_columns(t), '')) AS line)
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

-- Deletes leased tasks that are done, each under its token, and returns those that it had not to
-- delete: their leases are lost. The ids ascend; the n-th has the place and the nth[n]-th token. A
-- second statement is for those that were moved, as by task.Extend. Who holds a row for longer must
-- not hold up the others. The lock_timeout is longer than deadlock_timeout, after which PostgreSQL
-- ends a deadlock in a better way.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.finish_tasks(ids bigint[], places tid[], tokens uuid[],
  nth integer[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET lock_timeout = '2s' SET enable_seqscan = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  gone bigint[];
  more bigint[];
BEGIN
  WITH d AS (
    DELETE FROM outbox.task t
     WHERE t.ctid = ANY (places) AND t.task_id = ids[width_bucket(t.task_id, ids)]
       AND t.lease_token = tokens[nth[width_bucket(t.task_id, ids)]]
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
  RETURN QUERY SELECT i FROM unnest(ids) AS i WHERE i <> ALL (COALESCE(gone, '{}'))
    AND i <> ALL (COALESCE(more, '{}'));
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (23) ON CONFLICT DO NOTHING;
