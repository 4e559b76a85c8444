-- How tasks arrive, change and go: the functions of the triggers of outbox.task.

-- Inserts a plain task, for outbox.Enqueue. Here the INSERT is planned once a session, which saves
-- more than all triggers cost. It needs the rights that the INSERT needs, so everybody may call it.
CREATE OR REPLACE FUNCTION outbox.enqueue_task(task_type text, payload jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  new_id bigint;
BEGIN
  INSERT INTO outbox.task AS t (task_type, payload) VALUES ($1, $2) RETURNING t.task_id INTO new_id;
  RETURN new_id;
END
$$;

-- Refuses a row that no relay could run, with the error that a CHECK of that name would give.
-- Triggers call it for suspect rows, with their rights and search_path. A session keeps its plan,
-- also one that was made when the table was empty.
CREATE OR REPLACE FUNCTION outbox.check_task(suspect bigint) RETURNS boolean
LANGUAGE plpgsql COST 1 SET enable_seqscan = off SET enable_indexscan = on
  SET enable_nestloop = on SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  violated text;
BEGIN
  SELECT CASE
      WHEN NOT (state IN ('ready', 'scheduled', 'leased')
             OR state = 'waiting' AND num_nonnulls(ordering_key, group_key) > 0) THEN 'state'
      WHEN NOT ((state = 'leased') = (lease_token IS NOT NULL)
            AND (lease_token IS NULL OR relay_id IS NOT NULL)
            AND (leased_until IS NULL OR lease_token IS NOT NULL)) THEN 'lease'
      WHEN group_key IS NOT NULL AND state IN ('ready', 'leased') AND group_place IS NULL
        OR group_key IS NULL AND group_place IS NOT NULL THEN 'place'
      WHEN NOT (octet_length(task_type) BETWEEN 1 AND 128 AND task_type !~ '[[:cntrl:]]')
        THEN 'type'
      WHEN NOT (attempt >= 0) THEN 'attempt'
      WHEN NOT (max_attempts > 0) THEN 'max_attempts'
      WHEN NOT (jsonb_typeof(headers) = 'object') THEN 'headers'
      WHEN NOT (isfinite(run_at) AND run_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(created_at) AND created_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(attempted_at) AND attempted_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(expires_at) AND expires_at < '10000-01-01 00:00:00+00')
        OR NOT (isfinite(unique_until) AND unique_until < '10000-01-01 00:00:00+00') THEN 'time'
      WHEN state = 'ready' AND timeout_ms <= 0 THEN 'timeout'
    END
    INTO violated FROM outbox.task WHERE task_id = suspect;
  IF violated IS NOT NULL THEN
    RAISE EXCEPTION 'the task violates task_%_check', violated
      USING ERRCODE = 'check_violation', TABLE = 'task',
        CONSTRAINT = 'task_' || violated || '_check';
  END IF;
  RETURN true;
END
$$;

-- Returns the kind of counter.kind that a task counts as: its state, or retrying. A statement inlines
-- it, so it has no SET, and each name in it has its schema.
CREATE OR REPLACE FUNCTION outbox.kind_of(state text, attempt smallint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN state OPERATOR(pg_catalog.=) 'scheduled' AND attempt OPERATOR(pg_catalog.>) 0
    THEN 'retrying' ELSE state END
$$;

-- Changes a new task that is not simply ready. Rows that arrive in another state are the library's
-- own, written back: they keep their unique key if it still names them, and are never dropped. A
-- row whose unique key is taken is dropped. A task with an ordering or group key waits until it is
-- promoted, so it asks no other transaction: task_wake requests the promotion, as it is told to until
-- the transaction ends. One with a group key holds nobody up before it is due, so it is scheduled
-- until then.
CREATE OR REPLACE FUNCTION outbox.task_arrive() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF NEW.state <> 'ready' THEN
    RETURN NEW;
  END IF;
  IF NEW.timeout_ms <= 0 THEN
    RAISE EXCEPTION 'timeout_ms is %, must be positive, or NULL for the handler''s', NEW.timeout_ms
      USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_timeout_check';
  END IF;
  IF NEW.unique_key IS NOT NULL THEN
    NEW.unique_key := outbox.resolve_key(NEW.unique_key, NEW.payload);
    IF NOT outbox.take_key(NEW.task_type, NEW.unique_key, NEW.task_id, NEW.unique_until) THEN
      RETURN NULL;
    END IF;
  END IF;
  IF NEW.group_key IS NOT NULL THEN
    IF octet_length(NEW.group_key) NOT BETWEEN 1 AND 256 OR NEW.ordering_key IS NOT NULL THEN
      RAISE EXCEPTION 'the group key has % bytes, must have 1 to 256, and no ordering key beside it',
        octet_length(NEW.group_key)
        USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_group_check';
    END IF;
    NEW.group_place := NULL;
  END IF;
  IF NEW.ordering_key IS NOT NULL THEN
    IF octet_length(NEW.ordering_key) NOT BETWEEN 1 AND 256 THEN
      RAISE EXCEPTION 'the ordering key has % bytes, must have 1 to 256',
        octet_length(NEW.ordering_key)
        USING ERRCODE = 'check_violation', TABLE = 'task', CONSTRAINT = 'task_ordering_check';
    END IF;
    NEW.state := 'waiting';
    PERFORM set_config('outbox_order.arrived', 'true', true);
  ELSIF NEW.run_at > now() THEN
    NEW.state := 'scheduled';
  ELSIF NEW.group_key IS NOT NULL THEN
    NEW.state := 'waiting';
    PERFORM set_config('outbox_order.arrived', 'true', true),
            set_config('outbox_order.grouped', 'true', true);
  END IF;
  RETURN NEW;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_arrive() FROM PUBLIC;

-- Counts, checks and wakes, after an INSERT of tasks, and requests a promotion for each of their
-- ordering and group keys. It is one function, as a second one costs a single insert too much.
--
-- The first three rows are counted one by one, since an aggregate costs a single row as much as all
-- the rest. The others are counted in sums; the scan of a transition table has one order. A task that
-- a relay writes back has been attempted; all others are new. The columns selected have the types of
-- the table: casts above the LIMIT would be a node of the plan. Rows that meet the conditions are
-- legal by check_task, which returns true or fails. The conditions on the first three let pass
-- ordinary rows only, as each part of a condition costs in every statement.
--
-- NOTIFY takes a lock that serialises commits, so it is sent only while a relay asks for it. The
-- sequence is 0 while none does, which is known without the clock. The first NOTIFY of a transaction
-- names a task: priority, id and type. It names none of a paused type, which a relay would claim
-- without a poll. Further ones have no text, so that PostgreSQL sends one of them.
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1::bigint, num_nulls(attempted_at)::bigint, task_type, outbox.kind_of(state, attempt) FROM added
   WHERE state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, timeout_ms,
                      attempted_at, group_place, expires_at, unique_until) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity'
       AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
      OR outbox.check_task(task_id)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, outbox.kind_of(state, attempt)
      FROM (SELECT * FROM added OFFSET 3) AS rest
     WHERE (state IN ('ready', 'scheduled') AND group_place IS NULL
         OR state = 'waiting' AND num_nonnulls(ordering_key, group_key) > 0) AND attempt >= 0
       AND num_nonnulls(lease_token, leased_until) = 0
       AND (max_attempts > 0) IS NOT FALSE AND (timeout_ms > 0) IS NOT FALSE
         AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
       AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
       AND least(run_at, created_at, attempted_at, expires_at, unique_until) > '-infinity'
       AND greatest(run_at, created_at, attempted_at, expires_at, unique_until) < '10000-01-01 00:00:00+00'
        OR outbox.check_task(task_id)
     GROUP BY task_type, outbox.kind_of(state, attempt);
  END IF;
  IF pg_sequence_last_value('outbox.home'::regclass)
     IS DISTINCT FROM split_part(pg_relation_filepath('outbox.home'::regclass), '/', -2)::bigint THEN
    PERFORM outbox.settle((SELECT count(*) FROM added));
  END IF;
  IF current_setting('outbox_order.arrived', true) = 'true' THEN
    INSERT INTO outbox.headless_key (task_type, ordering_key)
    SELECT DISTINCT task_type, ordering_key FROM added
     WHERE state = 'waiting' AND ordering_key IS NOT NULL;
    IF current_setting('outbox_order.grouped', true) = 'true' THEN
      INSERT INTO outbox.place_request (task_type, group_key)
      SELECT DISTINCT task_type, group_key FROM added
       WHERE state = 'waiting' AND group_key IS NOT NULL;
    END IF;
  END IF;
  IF pg_sequence_last_value('outbox.wake'::regclass) > 0 THEN
    IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
      IF n < 3 AND current_setting('outbox_wake.named', true) IS DISTINCT FROM 'true' THEN
        PERFORM pg_notify(TG_TABLE_SCHEMA, concat((
          SELECT concat_ws(' ', priority, task_id, task_type) FROM added
           WHERE state = 'ready' AND task_type <> ALL (ARRAY(
             SELECT p.task_type FROM outbox.task_type p WHERE p.paused))
           ORDER BY priority, task_id LIMIT 1)));
        PERFORM set_config('outbox_wake.named', 'true', true);
      ELSE
        PERFORM pg_notify(TG_TABLE_SCHEMA, '');
      END IF;
    END IF;
  END IF;
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_wake() FROM PUBLIC;

-- Counts after a DELETE of tasks, and requests a promotion for each ordering key whose head is gone,
-- and for each group key that has a place again.
-- A trigger for each row, whose WHEN is prepared anew for every statement, would cost a claim of one
-- task more. The members of a group are counted by the group, in one row. Rows are counted one by one
-- first, as in task_wake: an aggregate costs a claim of one task 17 us of 130.
CREATE OR REPLACE FUNCTION outbox.task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  n bigint;
BEGIN
  IF current_setting('outbox_group.counts', true) = 'true' THEN
    PERFORM outbox.request_promotion(task_type, ordering_key, group_key) FROM removed
      WHERE ordering_key IS NOT NULL AND state <> 'waiting' OR group_place IS NOT NULL;
    RETURN NULL;
  END IF;
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT (-1)::bigint, 0::bigint, task_type, outbox.kind_of(state, attempt) FROM removed
   WHERE (ordering_key IS NULL OR state = 'waiting') AND group_place IS NULL
      OR outbox.request_promotion(task_type, ordering_key, group_key)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind)
    SELECT -count(*), task_type, outbox.kind_of(state, attempt)
      FROM (SELECT * FROM removed OFFSET 3) AS rest
     WHERE (ordering_key IS NULL OR state = 'waiting') AND group_place IS NULL
        OR outbox.request_promotion(task_type, ordering_key, group_key)
     GROUP BY task_type, outbox.kind_of(state, attempt);
  END IF;
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_removed() FROM PUBLIC;

-- Counts and checks after an UPDATE of tasks, and requests a promotion for each group key of which a
-- task waits now, or has no place any more. A lease is no faster without the check: 220 us of the
-- server's time both ways.
CREATE OR REPLACE FUNCTION outbox.task_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT sum(n), sum(n), task_type, kind
    FROM (SELECT 1 AS n, task_type, outbox.kind_of(state, attempt) AS kind FROM added
           WHERE (state IN ('ready', 'scheduled') AND num_nonnulls(lease_token, leased_until) = 0
               OR state = 'leased' AND num_nulls(lease_token, relay_id) = 0)
             AND num_nonnulls(group_key, group_place) IN (0, 2) AND attempt >= 0
             AND (max_attempts > 0) IS NOT FALSE AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
             AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
             AND least(run_at, created_at, attempted_at, expires_at, unique_until) > '-infinity'
             AND greatest(run_at, created_at, attempted_at, expires_at, unique_until) < '10000-01-01 00:00:00+00'
              OR outbox.check_task(task_id)
          UNION ALL SELECT -1, task_type, outbox.kind_of(state, attempt) FROM removed) AS change
   GROUP BY task_type, kind HAVING sum(n) <> 0;
  IF current_setting('outbox_order.grouped', true) = 'true' THEN
    INSERT INTO outbox.place_request (task_type, group_key)
    SELECT DISTINCT task_type, group_key FROM added
     WHERE group_key IS NOT NULL AND group_place IS NULL;
  END IF;
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_changed() FROM PUBLIC;
