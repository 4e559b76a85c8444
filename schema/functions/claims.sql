-- Functions that relays call to find tasks, and to claim them for Tx and Batch handlers.
--
-- A session keeps the plans of these functions, also those made when the tables were empty. While a
-- forgotten transaction keeps vacuum from its work, the table of tasks has many pages and, by its
-- statistics, few rows. The planner then takes reading all of it for cheaper than an index that has
-- as many pages and a place to begin. So the functions leave it the index in its order only. jit is
-- off where plans are for numbers that are not known, and seem dear beside a large backlog.
--
-- Functions that delete or update tasks keep the caller's search_path, as triggers of the app on
-- outbox.task run inside of them.
--
-- Each statement that locks tasks asks for a pause, with one probe of the index of task_type: its
-- snapshot sees each pause that was committed before the tasks that it sees.

-- Returns the lanes that have work, and when the next scheduled task of each is due: two index
-- probes for each type, and for the types of which much was claimed one for each span. A span is
-- all of some priorities or, of one priority, the tasks behind a place up to an attempt: an index
-- scan begins and ends at those bounds. The tasks in running are left out, as are types that are
-- paused. Times are cut to 95 years, as a time.Duration ends at 292. A row with i = 0 has the first
-- request for a promotion, from the given one on. Without one it has the last that there was as its age,
-- also if that commits later. Code of version 1 gives no request, and gets no such row then; code
-- before version 5 asks for no places.
CREATE OR REPLACE FUNCTION outbox.poll(
  types text[], running bigint[], span_types bigint[], first_priorities smallint[],
    first_attempts smallint[], first_ids bigint[],
  last_priorities smallint[], last_attempts smallint[], from_request bigint DEFAULT NULL,
  of_places boolean DEFAULT false)
RETURNS TABLE (i bigint, task_id bigint, priority smallint, attempt smallint, age bigint,
  due_in bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_indexscan = on
  SET enable_nestloop = on SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan SET search_path = pg_catalog, pg_temp AS $$
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
  SELECT 0, r.first, NULL, NULL, CASE WHEN r.first IS NULL THEN
         COALESCE(pg_sequence_last_value('outbox.headless_key_headless_key_id_seq'::regclass), 0) END,
         NULL
    FROM (SELECT LEAST((SELECT u.headless_key_id FROM outbox.headless_key u
                         WHERE u.headless_key_id >= COALESCE(from_request, 0)
                         ORDER BY u.headless_key_id LIMIT 1),
                       (SELECT u.place_request_id FROM outbox.place_request u
                         WHERE of_places AND u.place_request_id >= COALESCE(from_request, 0)
                         ORDER BY u.place_request_id LIMIT 1)) AS first) AS r
   WHERE r.first IS NOT NULL OR from_request IS NOT NULL;
END
$$;

-- Deletes up to so many of the first tasks of a lane from a place on, whose priority is at most the
-- given one, and returns each as claimed does, in no order. With due_from it takes the tasks that have
-- been due longest instead, from due_from (in microseconds since 1970) and from_id on. The settings are
-- the transaction's, in milliseconds: the first two are made before a row is locked.
--
-- One task is claimed by one statement. The CTE is fenced by its row lock and by MATERIALIZED: the planner
-- may run a bare sub-select in USING once for each row, and take more than its LIMIT. A join would leave it
-- the choice to read the lane for each task: = ANY (ARRAY (...)) does not.
--
-- Many are locked by one statement and deleted by their places in another, which sees each row as it is
-- under its lock. To look each of 1,000 up by task_id makes the claim a fifth dearer, and a burn-down of
-- Batch a sixth slower.
CREATE OR REPLACE FUNCTION outbox.claim_tasks(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
  up_to integer, due_from bigint, idle_timeout text, lock_timeout text, statement_timeout text)
  RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places  tid[];
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true);
BEGIN
  IF due_from IS NULL AND up_to = 1 THEN
    RETURN QUERY
    WITH c AS MATERIALIZED (
      SELECT t.task_id FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = of_type
         AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
         AND t.priority <= most
         AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = of_type AND p.paused)
       ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED)
    DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT c.task_id FROM c))
    RETURNING outbox.claimed(t);
  ELSE
    IF due_from IS NULL THEN
      places := ARRAY(
        SELECT t.ctid FROM outbox.task t
         WHERE t.state = 'ready' AND t.task_type = of_type
           AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
           AND t.priority <= most
           AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = of_type AND p.paused)
         ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
    ELSE
      places := ARRAY(
        SELECT t.ctid FROM outbox.task t
         WHERE t.state = 'ready' AND t.task_type = of_type
           AND (t.run_at, t.task_id)
            >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
           AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = of_type AND p.paused)
         ORDER BY t.run_at, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
    END IF;
    RETURN QUERY
    DELETE FROM outbox.task t WHERE t.ctid = ANY (places) RETURNING outbox.claimed(t);
  END IF;
  setting := set_config('statement_timeout', statement_timeout, true);
END
$$;

-- Locks tasks for a group as claim_tasks would claim them, and returns each with its place (ctid)
-- before. The tasks are waiting tasks for all that the transaction does until claim_member deletes them.
-- That needs the transaction's own level for both: a lock and a delete of different levels would make a
-- MultiXact. If begins is true, the first is deleted here.
CREATE OR REPLACE FUNCTION outbox.claim_group(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
  up_to integer, due_from bigint, idle_timeout text, lock_timeout text, statement_timeout text,
  begins boolean) RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places  tid[];
  lines   text[];
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true);
BEGIN
  IF due_from IS NULL THEN
    SELECT array_agg(f.place), array_agg(f.line) INTO places, lines FROM (
      SELECT t.ctid AS place, concat_ws(E'\x1f', t.ctid, outbox.claimed(t)) AS line
        FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = of_type
         AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
         AND t.priority <= most
         AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = of_type AND p.paused)
       ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) AS f;
  ELSE
    SELECT array_agg(f.place), array_agg(f.line) INTO places, lines FROM (
      SELECT t.ctid AS place, concat_ws(E'\x1f', t.ctid, outbox.claimed(t)) AS line
        FROM outbox.task t
       WHERE t.state = 'ready' AND t.task_type = of_type
         AND (t.run_at, t.task_id)
          >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
         AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = of_type AND p.paused)
       ORDER BY t.run_at, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) AS f;
  END IF;
  IF begins AND lines IS NOT NULL THEN
    DELETE FROM outbox.task t WHERE t.ctid = places[1];
  END IF;
  setting := set_config('statement_timeout', statement_timeout, true);
  RETURN QUERY SELECT unnest(lines);
END
$$;

-- Deletes a task that claim_group has locked, if it is still as it was then: a handler of the group
-- may have changed or canceled it. A task of a paused type stays. It returns the transaction's id, and
-- whether it deleted the task. The settings are the transaction's, in milliseconds. The group counts
-- the tasks that it has claimed so in one row, as it ends.
CREATE OR REPLACE FUNCTION outbox.claim_member(place tid, idle_timeout text, lock_timeout text,
  statement_timeout text) RETURNS text
LANGUAGE plpgsql SET jit = off AS $$
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
