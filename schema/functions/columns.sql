-- The functions that name the optional columns of a task. No other function loses a column that it
-- does not name.
--
-- A new column is NULL unless a task uses it. It is named in rest, and in enqueue_keyed if an app
-- may set it.

-- Returns the columns that few tasks use, as one object; NULL if the task uses none of them. A leased
-- task's attempted_at is of the present run. Of a task with expires_at it has two fields more, which
-- nobody writes back: expires_us, that time in microseconds since 1970, and past_expiry, whether it has
-- come.
--
-- The body is a text: PostgreSQL refuses a new column with a default while a parsed one (RETURN,
-- BEGIN ATOMIC) depends on the type of the table's rows. A claim inlines the text, so it has no
-- SET, and each name in it has its schema.
CREATE OR REPLACE FUNCTION outbox.rest(t outbox.task) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN pg_catalog.num_nonnulls(t.max_attempts, t.headers, t.last_error, t.timeout_ms, t.ordering_key,
                                 t.unique_key, t.timeline, t.group_key, t.expires_at,
                                 t.unique_until) OPERATOR(pg_catalog.=) 0
     AND (t.attempted_at IS NULL OR t.state OPERATOR(pg_catalog.=) 'leased')
     AND NOT (t.iterations OPERATOR(pg_catalog.>) 0 OR t.skip_failed OR t.unique_until_done) THEN NULL
    ELSE pg_catalog.to_jsonb(t) OPERATOR(pg_catalog.-)
      '{task_id,run_at,created_at,leased_until,relay_id,lease_token,priority,attempt,
        state,task_type,payload,group_place}'::pg_catalog.text[]
      OPERATOR(pg_catalog.||) CASE WHEN t.expires_at IS NULL THEN '{}' ELSE
        pg_catalog.jsonb_build_object(
          'expires_us', (pg_catalog.date_part('epoch', t.expires_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
          'past_expiry', t.expires_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()) END
  END
$$;

-- Inserts tasks with unique keys, or does to the waiting task that has a key as on_conflict says,
-- and returns the results in the order of the tasks. A task is an object with columns of the view
-- keyed_task, of which payload is a text. A column that is missing or null has its default.
--
-- One statement draws the ids and inserts all: it locks the table before the sequence, as each insert and
-- each ALTER TABLE does. Its rows lock their keys in one order, independent of the order of the
-- tasks. Equal payloads are neighbours as jsonb, so their keys need not be known. Of tasks with one
-- key the first takes it, and the last that changes the task counts: all have their locks by then.
--
-- A replaced task begins anew, so its lost runs go from the journal as well. Rows that a living relay
-- writes stay: that relay would wait for this transaction.
CREATE OR REPLACE FUNCTION outbox.enqueue_keyed(tasks jsonb[])
  RETURNS TABLE (task_id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  conflicts text[]   := ARRAY(SELECT t ->> 'on_conflict' FROM unnest(tasks) AS t);
  ids       bigint[];
  created   bigint[];
  holders   bigint[];
  outcomes  text[];
BEGIN
  IF NOT conflicts <@ '{skip,replace,reschedule}' THEN
    RAISE EXCEPTION 'on_conflict is %, must be skip, replace or reschedule', (
      SELECT COALESCE(c, 'NULL') FROM unnest(conflicts) AS c
       WHERE (c IN ('skip', 'replace', 'reschedule')) IS NOT TRUE LIMIT 1)
      USING ERRCODE = 'check_violation';
  END IF;
  WITH drawn AS MATERIALIZED (
    SELECT nextval('outbox.task_task_id_seq') AS id, g, n FROM unnest(tasks) WITH ORDINALITY AS u (g, n)),
  added AS (
    INSERT INTO outbox.task AS t (task_id, task_type, payload, priority, max_attempts, headers, run_at,
      timeout_ms, ordering_key, skip_failed, unique_key, unique_until_done, group_key, expires_at, unique_until)
    OVERRIDING SYSTEM VALUE
    SELECT u.id, g ->> 'task_type', (g ->> 'payload')::jsonb,
           COALESCE((g ->> 'priority')::smallint, 0),
           (g ->> 'max_attempts')::smallint, NULLIF(g -> 'headers', 'null'),
           COALESCE((g ->> 'run_at')::timestamptz, now()), (g ->> 'timeout_ms')::integer,
           g ->> 'ordering_key', COALESCE((g ->> 'skip_failed')::boolean, false), g ->> 'unique_key',
           COALESCE((g ->> 'unique_until_done')::boolean, false), g ->> 'group_key',
           (g ->> 'expires_at')::timestamptz, (g ->> 'unique_until')::timestamptz
      FROM drawn AS u
     ORDER BY g ->> 'task_type' COLLATE "C", g ->> 'unique_key' COLLATE "C",
              CASE WHEN g ->> 'unique_key' = '$payload' THEN (g ->> 'payload')::jsonb END, n
    RETURNING t.task_id)
  SELECT array_agg(a.task_id), ARRAY(SELECT d.id FROM drawn AS d ORDER BY d.n)
    INTO created, ids FROM added AS a;
  IF cardinality(created) = cardinality(ids) THEN
    RETURN QUERY SELECT id, 'created' FROM unnest(ids) AS id;
    RETURN;
  END IF;

  holders := ARRAY(
    SELECT COALESCE(c.id, k.task_id)
      FROM unnest(tasks, ids) WITH ORDINALITY AS u (g, id, n)
      LEFT JOIN unnest(created) AS c (id) ON c.id = u.id
      LEFT JOIN LATERAL (
        SELECT k.task_id FROM outbox.unique_key k
         WHERE c.id IS NULL AND k.task_type = g ->> 'task_type' AND k.task_id <> u.id
           AND k.key = outbox.resolve_key(g ->> 'unique_key', (g ->> 'payload')::jsonb)) AS k ON true
     ORDER BY n);
  outcomes := ARRAY(
    SELECT CASE WHEN u.holder = u.id THEN 'created'
                WHEN u.conflict <> 'skip' AND outbox.lock_waiting(u.holder) = 'waiting' THEN 'updated'
                ELSE 'skipped' END
      FROM unnest(ids, holders, conflicts) WITH ORDINALITY AS u (id, holder, conflict, n)
     ORDER BY n);

  IF 'updated' = ANY (outcomes) AND 'replace' = ANY (conflicts) THEN
    WITH last AS MATERIALIZED (
      SELECT DISTINCT ON (u.holder) u.holder, u.g
        FROM unnest(tasks, holders, outcomes) WITH ORDINALITY AS u (g, holder, outcome, n)
       WHERE u.outcome = 'updated' AND u.g ->> 'on_conflict' = 'replace'
       ORDER BY u.holder, u.n DESC),
    lost AS (
      DELETE FROM outbox.running r
       WHERE r.task_id = ANY (ARRAY(SELECT l.holder FROM last AS l)) AND r.task_ids IS NULL
         AND (r.lost_connection OR NOT EXISTS (SELECT 1 FROM outbox.relay l
               WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp())))
    UPDATE outbox.task t
       SET run_at = COALESCE((g ->> 'run_at')::timestamptz, now()),
           state = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
             WHEN COALESCE((g ->> 'run_at')::timestamptz, now()) > now() THEN 'scheduled'
             ELSE 'ready' END,
           payload = (g ->> 'payload')::jsonb, headers = NULLIF(g -> 'headers', 'null'),
           priority = COALESCE((g ->> 'priority')::smallint, 0),
           max_attempts = (g ->> 'max_attempts')::smallint,
           timeout_ms = (g ->> 'timeout_ms')::integer, expires_at = (g ->> 'expires_at')::timestamptz,
           attempt = 0, last_error = NULL, relay_id = NULL,
           timeline = CASE WHEN t.timeline -> -1 ->> 'event' = 'replaced' THEN t.timeline
             WHEN t.timeline IS NOT NULL
               THEN outbox.add_events(t.timeline, '[{"event": "replaced"}]') END
      FROM last
     WHERE t.task_id = last.holder AND t.task_id = ANY (ARRAY(SELECT l.holder FROM last AS l));
  END IF;
  IF 'updated' = ANY (outcomes) AND 'reschedule' = ANY (conflicts) THEN
    WITH last AS MATERIALIZED (
      SELECT DISTINCT ON (u.holder) u.holder, u.g
        FROM unnest(tasks, holders, outcomes) WITH ORDINALITY AS u (g, holder, outcome, n)
       WHERE u.outcome = 'updated' ORDER BY u.holder, u.n DESC)
    UPDATE outbox.task t
       SET run_at = COALESCE((g ->> 'run_at')::timestamptz, now()),
           state = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
             WHEN COALESCE((g ->> 'run_at')::timestamptz, now()) > now() THEN 'scheduled'
             ELSE 'ready' END,
           expires_at = (g ->> 'expires_at')::timestamptz
      FROM last WHERE t.task_id = last.holder AND g ->> 'on_conflict' = 'reschedule'
       AND t.task_id = ANY (ARRAY(SELECT l.holder FROM last AS l));
  END IF;
  RETURN QUERY SELECT * FROM unnest(holders, outcomes);
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.enqueue_keyed(jsonb[]) FROM PUBLIC;

-- Does the same for a row that is inserted into the view keyed_task.
CREATE OR REPLACE FUNCTION outbox.keyed_task_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  SELECT e.task_id, e.outcome INTO NEW.task_id, NEW.outcome
    FROM outbox.enqueue_keyed(ARRAY[
      to_jsonb(NEW) || jsonb_build_object('payload', NEW.payload::text)]) AS e;
  RETURN NEW;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.keyed_task_insert() FROM PUBLIC;
