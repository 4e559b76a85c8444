-- The row of a task on its way through a relay. A relay reads of a claimed task the columns that it
-- decides on. It carries the others unread (rest, columns.sql), and hands them back to put_back, bury or
-- keep.

-- Returns a claimed task as text, its fields with U+001F between them, which no JSON has: task_id,
-- priority, attempt, run_at and created_at in microseconds since 1970 (created_at is empty where it
-- equals run_at), the transaction's id, rest or nothing, and the payload. A text costs the client
-- less than columns, which make a claim of one task a fifth dearer. The body is a text as that of
-- rest (columns.sql).
CREATE OR REPLACE FUNCTION outbox.claimed(t outbox.task) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT pg_catalog.concat_ws(E'\x1f', t.task_id, t.priority, t.attempt,
    (pg_catalog.date_part('epoch', t.run_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
    CASE WHEN t.created_at OPERATOR(pg_catalog.<>) t.run_at
      THEN (pg_catalog.date_part('epoch', t.created_at) OPERATOR(pg_catalog.*) 1000000)::bigint::pg_catalog.text
      ELSE '' END,
    pg_catalog.pg_current_xact_id(), COALESCE(outbox.rest(t)::pg_catalog.text, ''), t.payload)
$$;

-- Returns a whole row, as an object, of what a relay hands back: the object rest as it was claimed,
-- the columns that it read or changed, and run_us, created_us and began_us, times in microseconds
-- since 1970. A run that began with this transaction has no began_us; untried is true if none began.
CREATE OR REPLACE FUNCTION outbox.whole(task jsonb) RETURNS jsonb LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
  SELECT '{"iterations": 0, "skip_failed": false, "unique_until_done": false}'
    || COALESCE(task -> 'rest', '{}') || task
    || jsonb_strip_nulls(jsonb_build_object(
      'run_at', timestamptz 'epoch' + (task ->> 'run_us')::bigint * interval '1 microsecond',
      'created_at', timestamptz 'epoch' + (task ->> 'created_us')::bigint * interval '1 microsecond',
      'attempted_at', COALESCE(
        timestamptz 'epoch' + (task ->> 'began_us')::bigint * interval '1 microsecond',
        (task ->> 'attempted_at')::timestamptz,
        CASE WHEN task -> 'untried' = 'true' THEN (task -> 'rest' ->> 'attempted_at')::timestamptz END,
        now())))
$$;

-- Returns the defaults that a row of the table lacks, as the SQL of an object's arguments: those of
-- columns that refuse NULL and that the row does not name, as the app has added them. NULL if there
-- are none. Rows of a statement name the same columns, so it asks once.
CREATE OR REPLACE FUNCTION outbox.lacking(target regclass, task jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  SELECT string_agg(format('%L, %s', a.attname, pg_get_expr(d.adbin, d.adrelid)), ', ')
    FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
   WHERE a.attrelid = target AND a.attnotnull AND a.attgenerated = '' AND NOT task ? a.attname::text
$$;

-- Returns a row with the defaults that it lacks. Code of version 1 calls it, with
-- jsonb_populate_record.
CREATE OR REPLACE FUNCTION outbox.with_defaults(task jsonb, defaults text) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
  IF defaults IS NOT NULL THEN
    EXECUTE 'SELECT $1 || jsonb_build_object(' || defaults || ')' INTO task USING task;
  END IF;
  RETURN task;
END
$$;

-- Returns the row of a table for an object, with the defaults that it lacks, which are evaluated
-- for each row. The given row says the type. A null is NULL in it, except in payload, which has
-- none.
CREATE OR REPLACE FUNCTION outbox.row_of(of anyelement, task jsonb, defaults text) RETURNS anyelement
LANGUAGE plpgsql AS $$
DECLARE
  made record;
BEGIN
  made := jsonb_populate_record(of, outbox.with_defaults(task, defaults));
  made.payload := task -> 'payload';
  RETURN made;
END
$$;

-- Inserts a task again that its claim has deleted, to run in so many microseconds, and returns its id.
-- Its runs go from the journal, except those with the tokens. It arrives with attempted_at: the
-- trigger that counts takes a row without it for a new task.
CREATE OR REPLACE FUNCTION outbox.put_back(
  task jsonb, wait bigint, failed boolean, attempts integer, living uuid[], of_relay uuid,
  events jsonb) RETURNS SETOF bigint
LANGUAGE plpgsql SET jit = off AS $$
DECLARE
  row   CONSTANT jsonb := outbox.whole(task);
  added CONSTANT jsonb := jsonb_build_object(
    'run_at', clock_timestamp() + wait * interval '1 microsecond',
    'timeline', outbox.timeline(row, attempts, living, of_relay, events));
BEGIN
  DELETE FROM outbox.running r
   WHERE r.task_id = (row ->> 'task_id')::bigint AND r.token <> ALL (living);
  IF failed THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (1, row ->> 'task_type', 'failed');
  END IF;
  RETURN QUERY INSERT INTO outbox.task AS t OVERRIDING SYSTEM VALUE
  SELECT r.* FROM outbox.row_of(
    NULL::outbox.task, row || added, outbox.lacking('outbox.task', row || added)) AS r
  RETURNING t.task_id;
END
$$;

-- Inserts a task that its claim has deleted into the dead letters, and returns its id: task has
-- reason too. max_attempts is the limit that held. Its runs go from the journal. One that expired has
-- not begun with this claim.
CREATE OR REPLACE FUNCTION outbox.bury(
  task jsonb, max_attempts integer, failed boolean, attempts integer, living uuid[], of_relay uuid,
  events jsonb) RETURNS SETOF bigint
LANGUAGE plpgsql SET jit = off AS $$
DECLARE
  row   CONSTANT jsonb := outbox.whole(task);
  added CONSTANT jsonb := jsonb_build_object(
    'state', 'dead', 'died_at', clock_timestamp(), 'max_attempts', max_attempts,
    'task_max_attempts', row -> 'max_attempts',
    'attempted_at', CASE row ->> 'reason' WHEN 'expired' THEN task -> 'rest' -> 'attempted_at'
      ELSE row -> 'attempted_at' END,
    'timeline', outbox.timeline(row, attempts, living, of_relay, events));
BEGIN
  DELETE FROM outbox.running r WHERE r.task_id = (row ->> 'task_id')::bigint;
  IF failed THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (1, row ->> 'task_type', 'failed');
  END IF;
  RETURN QUERY INSERT INTO outbox.dead_task AS d
  SELECT r.* FROM outbox.row_of(
    NULL::outbox.dead_task, row || added, outbox.lacking('outbox.dead_task', row || added)) AS r
  RETURNING d.task_id;
END
$$;

-- Ends up to so many tasks that have expired, whatever their state, behind a place in the order of their
-- expiry: of the types, and if others is true also of those that no living relay has, an hour later. They
-- are dead letters with the error and the event, or removed if the type is among the discarded ones.
-- Without a number of its own or its type's, a task has 20 attempts, as handlers have by default. Half a
-- second after it has the locks it ends no further task.
--
-- It returns the tasks that it came to, in their order. One that cannot be written stays as it is, with
-- the reason as wrong. One whose run the journal has stays, too, and has begun. The locks come first: a run
-- that has begun before is in the journal by then, for the next statement to see. The settings are those of
-- claims.sql.
CREATE OR REPLACE FUNCTION outbox.expire_tasks(
  types text[], max_attempts integer[], discarded text[], others boolean, after_us bigint,
    after_id bigint, up_to integer, error text, events jsonb)
  RETURNS TABLE (task_id bigint, task_type text, max integer, run_us bigint, expires_us bigint,
    begun boolean, wrong text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
  SET enable_bitmapscan = off SET enable_sort = off SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  ids   bigint[];
  runs  bigint[];
  t     outbox.task;
  began timestamptz;
BEGIN
  ids := ARRAY(
    SELECT e.task_id FROM outbox.task e
     WHERE e.expires_at <= statement_timestamp() AND e.attempt = 0 AND e.iterations = 0
       AND (e.expires_at, e.task_id)
         > (timestamptz 'epoch' + after_us * interval '1 microsecond', after_id)
       AND (e.task_type = ANY (types)
         OR others AND e.expires_at <= statement_timestamp() - interval '1 hour' AND NOT EXISTS (
           SELECT FROM outbox.relay l
            WHERE l.alive_until > clock_timestamp() AND e.task_type = ANY (l.task_types)))
     ORDER BY e.expires_at, e.task_id LIMIT up_to FOR UPDATE SKIP LOCKED);
  IF cardinality(ids) = 0 THEN
    RETURN;
  END IF;
  began := clock_timestamp();
  runs := ARRAY(SELECT r.task_id FROM outbox.running r WHERE r.task_id = ANY (ids))
       || ARRAY(SELECT unnest(r.task_ids) FROM outbox.running r WHERE r.task_ids IS NOT NULL
                   AND r.last_id >= (SELECT min(i) FROM unnest(ids) AS i)
                   AND r.first_id <= (SELECT max(i) FROM unnest(ids) AS i));
  FOREACH task_id IN ARRAY ids LOOP
    SELECT * INTO STRICT t FROM outbox.task e WHERE e.task_id = expire_tasks.task_id;
    task_type := t.task_type;
    max := COALESCE(t.max_attempts, expire_tasks.max_attempts[array_position(types, t.task_type)], 20);
    run_us := date_part('epoch', t.run_at) * 1000000;
    expires_us := date_part('epoch', t.expires_at) * 1000000;
    begun := task_id = ANY (runs);
    wrong := NULL;
    IF NOT begun THEN
      BEGIN
        DELETE FROM outbox.task e WHERE e.task_id = expire_tasks.task_id;
        IF t.task_type = ANY (discarded) THEN
          INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (1, t.task_type, 'expired');
        ELSE
          PERFORM outbox.bury(jsonb_build_object('rest', to_jsonb(t) - 'group_place', 'reason', 'expired',
            'last_error', error), max, false, 0, '{}', NULL, events);
          IF NOT FOUND THEN
            RAISE EXCEPTION 'the dead letter was not inserted: is there a trigger that drops rows?';
          END IF;
        END IF;
      EXCEPTION WHEN OTHERS THEN
        IF left(SQLSTATE, 2) NOT IN ('22', '23', '42', '54', '58', 'P0', 'XX') THEN
          RAISE; -- for no reason that is in the row
        END IF;
        wrong := SQLERRM;
      END;
    END IF;
    RETURN NEXT;
    EXIT WHEN clock_timestamp() > began + interval '0.5 s';
  END LOOP;
END
$$;

-- Writes tasks that are done to the history, for so many microseconds. The array has a whole row's
-- parts for each, and living where the journal has lost runs of it. A task that is there already was
-- finished before, say before a failover brought it back.
CREATE OR REPLACE FUNCTION outbox.keep(tasks jsonb, keep_us bigint, of_relay uuid) RETURNS void
LANGUAGE plpgsql SET jit = off AS $$
DECLARE
  defaults CONSTANT text := outbox.lacking('outbox.done_task', outbox.whole(tasks -> 0)
    || '{"state": null, "finished_at": null, "keep_until": null}');
BEGIN
  INSERT INTO outbox.done_task
  SELECT d.*
    FROM jsonb_array_elements(tasks) AS e (task) CROSS JOIN LATERAL outbox.whole(e.task) AS w (row)
   CROSS JOIN LATERAL outbox.row_of(NULL::outbox.done_task,
     w.row || jsonb_build_object(
     'state', 'finished', 'finished_at', clock_timestamp(),
     'keep_until', clock_timestamp() + keep_us * interval '1 microsecond',
     'timeline', CASE WHEN w.row -> 'living' IS NULL THEN w.row -> 'timeline' ELSE outbox.timeline(
       w.row, (w.row ->> 'claimed_attempt')::integer,
       ARRAY(SELECT jsonb_array_elements_text(w.row -> 'living')::uuid), of_relay, NULL) END), defaults) AS d
      ON CONFLICT (task_id) DO NOTHING;
END
$$;
