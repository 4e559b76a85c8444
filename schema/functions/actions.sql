-- Actions on tasks and schedules, for apps and operators.

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

-- Changes tasks that wait: their type or, if that is NULL, when they are due and their priority, each
-- unless it is NULL. It returns for each that is there: changed; running, as it is leased or locked, and
-- left as it is; or key_held, as another task of the new type has its unique key. It waits for no task.
-- A task that would expire before it is due does not expire any more.
--
-- A task with a new type leaves the order and the places of the old one, and waits for its turn among the
-- tasks of its key in the new one. No relay promotes meanwhile: it could make the task a head of both
-- types. The task is locked FOR UPDATE. An Enqueue of its unique key treats such a task as running, and
-- does not wait for it with the key locked. The keys are locked in the order of enqueue_keyed, which
-- waits for an open transaction that has just taken one, as an Enqueue does.
CREATE OR REPLACE FUNCTION outbox.change_tasks(
  ids bigint[], new_run_at timestamptz, new_priority smallint, new_type text)
  RETURNS TABLE (task_id bigint, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
DECLARE
  mine bigint[];
  held bigint[] := '{}';
  k    record;
BEGIN
  IF new_type IS NULL THEN
    mine := ARRAY(SELECT t.task_id FROM outbox.task t
                   WHERE t.task_id = ANY (ids) AND t.state <> 'leased' FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE outbox.task t SET priority = new_priority WHERE t.task_id = ANY (mine) AND new_priority IS NOT NULL;
    UPDATE outbox.task t
       SET run_at = CASE WHEN new_run_at > now() THEN new_run_at ELSE LEAST(t.run_at, now()) END,
           state = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
             WHEN new_run_at > now() THEN 'scheduled' ELSE 'ready' END,
           expires_at = CASE WHEN t.expires_at > new_run_at THEN t.expires_at END
     WHERE t.task_id = ANY (mine) AND new_run_at IS NOT NULL;
  ELSE
    PERFORM FROM outbox.promote_lock FOR UPDATE;
    mine := ARRAY(SELECT t.task_id FROM outbox.task t
                   WHERE t.task_id = ANY (ids) AND t.state <> 'leased' FOR UPDATE SKIP LOCKED);
    FOR k IN
      SELECT t.task_id, o.of_type, t.unique_key, t.unique_until FROM outbox.task t
        JOIN outbox.unique_key u ON u.task_type = t.task_type AND u.key = t.unique_key AND u.task_id = t.task_id
       CROSS JOIN LATERAL (SELECT of_type, t.unique_key LIKE '$payload:%'
                              AND NOT COALESCE(t.headers ? 'outbox-codec', false) AS of_payload
                             FROM (VALUES (t.task_type), (new_type)) AS v (of_type)) AS o
       WHERE t.task_id = ANY (mine) AND t.task_type <> new_type
       ORDER BY o.of_type COLLATE "C",
                CASE WHEN o.of_payload THEN '$payload' ELSE t.unique_key END COLLATE "C",
                CASE WHEN o.of_payload THEN t.payload END, t.task_id
    LOOP
      IF k.of_type <> new_type THEN
        PERFORM FROM outbox.unique_key u WHERE u.task_type = k.of_type AND u.key = k.unique_key FOR UPDATE;
      ELSIF NOT outbox.take_key(new_type, k.unique_key, k.task_id, k.unique_until) THEN
        held := held || k.task_id;
      END IF;
    END LOOP;
    DELETE FROM outbox.unique_key u USING outbox.task t
     WHERE t.task_id = ANY (mine) AND t.task_id <> ALL (held) AND t.task_type <> new_type
       AND u.task_type = t.task_type AND u.key = t.unique_key AND u.task_id = t.task_id;
    PERFORM outbox.request_promotion(r.of_type, r.ordering_key, r.group_key) FROM (
      SELECT DISTINCT o.of_type, t.ordering_key, t.group_key FROM outbox.task t
       CROSS JOIN LATERAL (VALUES (t.task_type), (new_type)) AS o (of_type)
       WHERE t.task_id = ANY (mine) AND t.task_id <> ALL (held)
         AND num_nonnulls(t.ordering_key, t.group_key) > 0) AS r;
    UPDATE outbox.task t
       SET task_type = new_type, state = CASE WHEN num_nonnulls(t.ordering_key, t.group_key) > 0
             THEN 'waiting' ELSE t.state END
     WHERE t.task_id = ANY (mine) AND t.task_id <> ALL (held);
  END IF;
  IF cardinality(mine) > 0 AND clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
    PERFORM pg_notify(n.nspname, '')
       FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE c.oid = 'outbox.wake'::regclass;
  END IF;
  RETURN QUERY
  SELECT t.task_id, CASE WHEN t.task_id = ANY (held) THEN 'key_held'
                         WHEN t.task_id = ANY (mine) THEN 'changed' ELSE 'running' END
    FROM outbox.task t WHERE t.task_id = ANY (ids);
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.change_tasks(bigint[], timestamptz, smallint, text) FROM PUBLIC;

-- Replaces the payload of a task that waits, or of a dead letter, and returns changed. Of a task that is
-- leased or locked, as it runs, it returns running and leaves it; encoded, where the payload is that of a
-- codec, which no operator has. NULL: there is none. A unique key that was made of the payload stays.
CREATE OR REPLACE FUNCTION outbox.set_payload(task_id bigint, payload jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  PERFORM FROM outbox.task t WHERE t.task_id = $1 AND t.state <> 'leased' FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE outbox.task t SET payload = $2 WHERE t.task_id = $1 AND NOT COALESCE(t.headers ? 'outbox-codec', false);
    RETURN CASE WHEN FOUND THEN 'changed' ELSE 'encoded' END;
  END IF;
  PERFORM FROM outbox.task t WHERE t.task_id = $1;
  IF FOUND THEN
    RETURN 'running';
  END IF;
  PERFORM FROM outbox.dead_task d WHERE d.task_id = $1 FOR UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE outbox.dead_task d SET payload = $2
     WHERE d.task_id = $1 AND NOT COALESCE(d.headers ? 'outbox-codec', false);
    RETURN CASE WHEN FOUND THEN 'changed' ELSE 'encoded' END;
  END IF;
  PERFORM FROM outbox.dead_task d WHERE d.task_id = $1;
  RETURN CASE WHEN FOUND THEN 'running' END;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.set_payload(bigint, jsonb) FROM PUBLIC;

-- Stores a schedule, or changes the stored one of the name, and returns whether it did: one of the relays'
-- code stays, also one that a relay of before migration 8 has made of a stored one, by its definition. With
-- the same timing the next firing stays; else a relay computes it, unless fire_schedule comes first. Like
-- the first task, the first schedule says that what waits belongs here.
CREATE OR REPLACE FUNCTION outbox.put_schedule(of_name text, of_type text, of_payload jsonb, of_spec text,
  of_zone text, of_catch_up text, of_paused boolean, keeps_payload boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF pg_sequence_last_value('outbox.home'::regclass)
     IS DISTINCT FROM split_part(pg_relation_filepath('outbox.home'::regclass), '/', -2)::bigint THEN
    PERFORM outbox.settle(0);
  END IF;
  IF octet_length(of_spec) NOT BETWEEN 1 AND 1000 OR octet_length(of_zone) > 64 OR of_zone = 'Local'
     OR octet_length(of_payload::text) > 16777216 THEN
    RAISE EXCEPTION 'a schedule has a spec of 1 to 1000 bytes, a time zone by name, and at most 16 MiB of payload'
      USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO outbox.schedule AS s (name, stored, task_type, payload, spec, time_zone, catch_up, paused,
    timing, definition)
  VALUES (of_name, true, of_type, of_payload, of_spec, of_zone, of_catch_up, of_paused, '',
    'stored ' || gen_random_uuid())
  ON CONFLICT (name) DO UPDATE
     SET next_at = CASE WHEN s.spec = of_spec AND s.time_zone = of_zone THEN s.next_at END,
         timing = CASE WHEN s.spec = of_spec AND s.time_zone = of_zone THEN s.timing ELSE '' END,
         task_type = of_type, payload = CASE WHEN keeps_payload THEN s.payload ELSE of_payload END,
         spec = of_spec, time_zone = of_zone, catch_up = of_catch_up, paused = of_paused,
         definition = EXCLUDED.definition, wrong = NULL
   WHERE s.stored AND s.definition LIKE 'stored %';
  RETURN FOUND;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.put_schedule(text, text, jsonb, text, text, text, boolean, boolean) FROM PUBLIC;

-- Makes a schedule due now, and returns due; or paused or wrong: it would not fire. NULL: there is none. One
-- that is due fires no more often for it. A firing that this waits for is not repeated.
CREATE OR REPLACE FUNCTION outbox.fire_schedule(of_name text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  s record;
BEGIN
  SELECT paused, wrong INTO s FROM outbox.schedule WHERE name = of_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  ELSIF s.paused THEN
    RETURN 'paused';
  ELSIF s.wrong IS NOT NULL THEN
    RETURN 'wrong';
  END IF;
  UPDATE outbox.schedule f SET next_at = LEAST(f.next_at,
    GREATEST(clock_timestamp(), f.last_at + interval '1 microsecond')) WHERE f.name = of_name;
  RETURN 'due';
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.fire_schedule(text) FROM PUBLIC;

-- Returns how far a task is, for an app that waits for it: open, dead with reason and last error, done with
-- its result, or gone. An open task is asked to end, and kept if all living relays that have its type, and there
-- are some, have a history of it: then it was removed if it is gone later.
CREATE OR REPLACE FUNCTION outbox.task_end(task_id bigint)
  RETURNS TABLE (state text, reason text, error text, result jsonb, asked boolean, kept boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET enable_indexscan = on SET enable_nestloop = on SET jit = off AS $$
BEGIN
  RETURN QUERY
  SELECT e.state, e.reason, e.error, e.result, e.asked, e.kept FROM (
    SELECT 1 AS place, 'open' AS state, '' AS reason, '' AS error, NULL::jsonb AS result,
           EXISTS (SELECT FROM outbox.cancel c WHERE c.task_id = $1) AS asked,
           COALESCE((SELECT bool_and(COALESCE(l.limits -> 'types' -> t.task_type ? 'history', false))
                       FROM outbox.relay l
                      WHERE l.alive_until > clock_timestamp() AND t.task_type = ANY (l.task_types)), false) AS kept
      FROM outbox.task t WHERE t.task_id = $1
    UNION ALL SELECT 2, 'dead', d.reason, COALESCE(d.last_error, ''), NULL, false, false
      FROM outbox.dead_task d WHERE d.task_id = $1
    UNION ALL SELECT 3, 'done', '', '', f.result, false, false FROM outbox.done_task f WHERE f.task_id = $1
    UNION ALL SELECT 4, 'gone', '', '', NULL, false, false) AS e
   ORDER BY e.place LIMIT 1;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_end(bigint) FROM PUBLIC;
