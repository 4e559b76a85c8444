-- Functions that relays call to lease tasks, and to finish leased ones. The settings are as in
-- claims.sql.

-- Leases up to so many tasks of a type: at each place in turn, as claim_tasks does at its place.
-- at_places has a row for each: from_priority, from_attempt, from_id, most and, by due time, due_from.
--
-- Each lease counts an attempt, except that of a task that a process died of: it may have to wait for
-- another suspect. leased_until is now and the task's own timeout, with timeout_us for each millisecond
-- and margin_us, or registered_us.
--
-- The locks come first, in a statement of their own: the next one sees each row as it is under its
-- lock, and reaches it by its place, which saves 0.8 us a task. A place is that of one version of a
-- row: another transaction may have moved the task, and another task may be there by now.
--
-- tasks has a line for each task, in no order, with what columns have as text, separated by tabs, NULL
-- as nothing: task_id, place, priority, attempt, run_at and (if it is not the same) created_at in
-- microseconds since 1970, the relay that died while it ran the task, the payload, rest. No
-- column has a tab or the end of a line in its text: JSON writes them as \t and \n in strings.
CREATE OR REPLACE FUNCTION outbox.lease_tasks(
  of_type text, up_to integer, of_relay uuid, of_token uuid, registered_us bigint,
    timeout_us bigint, margin_us bigint, at_places bigint[],
  OUT tasks text, OUT xid text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  from_priority smallint;
  from_attempt  smallint;
  from_id       bigint;
  most          smallint;
  due_from      bigint;
  places        tid[];
  lost_ids      bigint[];
  lost_relays   uuid[];
  lines         text;
  n             integer;
BEGIN
  FOR i IN 1 .. array_length(at_places, 1) LOOP
    from_priority := at_places[i][1];
    from_attempt := at_places[i][2];
    from_id := at_places[i][3];
    most := at_places[i][4];
    due_from := at_places[i][5];
    IF due_from IS NULL THEN
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
               WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
                 AND t.priority <= most
                 AND NOT EXISTS (SELECT FROM outbox.task_type p
                                  WHERE p.task_type = of_type AND p.paused)
               ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) f;
    ELSE
      SELECT array_agg(f.place), array_agg(f.task_id) FILTER (WHERE f.relay_id IS NOT NULL),
             array_agg(f.relay_id) FILTER (WHERE f.relay_id IS NOT NULL)
        INTO places, lost_ids, lost_relays
        FROM (SELECT t.ctid AS place, t.task_id, t.relay_id FROM outbox.task t
               WHERE t.state = 'ready' AND t.task_type = of_type
                 AND (t.run_at, t.task_id)
                  >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
                 AND NOT EXISTS (SELECT FROM outbox.task_type p
                                  WHERE p.task_type = of_type AND p.paused)
               ORDER BY t.run_at, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) f;
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
                    t.payload, COALESCE(outbox.rest(t)::text, '')) AS line)
      SELECT string_agg(line, E'\n'), count(*) INTO lines, n FROM leased;
      tasks := concat_ws(E'\n', tasks, lines);
      up_to := up_to - n;
      xid := pg_current_xact_id()::text;
    END IF;
    EXIT WHEN up_to <= 0;
  END LOOP;
END
$$;

-- Deletes leased tasks that are done, each under its token, and returns those that it had not to
-- delete: their leases are lost. The ids ascend; the n-th has the place and the nth[n]-th token. A
-- second statement is for those that were moved, as by task.Extend. A row that another transaction
-- holds for longer must not hold up the others. The lock_timeout is longer than deadlock_timeout,
-- after which PostgreSQL ends a deadlock in a better way.
CREATE OR REPLACE FUNCTION outbox.finish_tasks(ids bigint[], places tid[], tokens uuid[],
  nth integer[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET lock_timeout = '2s' SET enable_seqscan = off SET enable_indexscan = on
  SET enable_nestloop = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
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

-- Deletes a leased task under its token, and returns the transaction's id and when the attempt began,
-- in microseconds since 1970; NULL if the lease is lost. The settings are the transaction's, and made
-- before the row is locked. They bound what the app does then, whose row must not stay locked for
-- long.
CREATE OR REPLACE FUNCTION outbox.complete_task(of_id bigint, of_token uuid) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET plan_cache_mode = force_generic_plan SET jit = off AS $$
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
