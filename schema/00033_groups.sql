-- +goose Up
-- Groups claim each task as its handler is called. Replacing a task begins anew, and a timeline keeps
-- its latest redrive.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00033_groups.sql

COMMENT ON COLUMN outbox.task.timeline
  IS 'failed and lost attempts, deaths, redrives and replacements, the oldest first, at most 20; '
     'NULL: none';
COMMENT ON COLUMN outbox.keyed_task.on_conflict
  IS 'skip, replace (payload, headers, run_at, priority, max_attempts, timeout_ms; it begins anew) '
     'or reschedule (run_at)';

-- The timeline with more events, which happened now unless they say when. Of more than 20 it keeps
-- the newest, the last redrive, the last replacement and, as the one in which the trouble began, the
-- first after these.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.add_events(timeline jsonb, added jsonb) RETURNS jsonb
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  WITH every AS (
    SELECT e.event, e.i FROM jsonb_array_elements(COALESCE(timeline, '[]')) WITH ORDINALITY AS e (event, i)
     UNION ALL
    SELECT jsonb_build_object('at', clock_timestamp()) || e.event,
           e.i + jsonb_array_length(COALESCE(timeline, '[]'))
      FROM jsonb_array_elements(added) WITH ORDINALITY AS e (event, i)),
  marks AS (
    SELECT COALESCE(max(every.i) FILTER (WHERE every.event ->> 'event' = 'redriven'), 0) AS redriven,
           COALESCE(max(every.i) FILTER (WHERE every.event ->> 'event' = 'replaced'), 0) AS replaced
      FROM every),
  kept AS (
    SELECT every.event, every.i FROM every, marks
     ORDER BY every.i IN (redriven, replaced, GREATEST(redriven, replaced) + 1) DESC, every.i DESC
     LIMIT 20)
  SELECT jsonb_agg(kept.event ORDER BY kept.i) FROM kept
$$;
-- +goose StatementEnd

-- Inserts a task with a unique key, or does to the waiting task that has it what on_conflict says.
-- A replaced task begins anew, so lost runs in the journal go as well: those that no living relay
-- writes, which would wait for this transaction.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.keyed_task_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
  SET jit = off AS $$
BEGIN
  IF NEW.on_conflict IS NULL OR NEW.on_conflict NOT IN ('skip', 'replace', 'reschedule') THEN
    RAISE EXCEPTION 'on_conflict is %, must be skip, replace or reschedule',
      COALESCE(NEW.on_conflict, 'NULL')
      USING ERRCODE = 'check_violation';
  END IF;
  INSERT INTO outbox.task (task_type, payload, priority, max_attempts, headers, run_at, timeout_ms,
    ordering_key, skip_failed, unique_key, unique_until_done)
  VALUES (NEW.task_type, NEW.payload, NEW.priority, NEW.max_attempts, NEW.headers, NEW.run_at,
    NEW.timeout_ms, NEW.ordering_key, NEW.skip_failed,
          NEW.unique_key, NEW.unique_until_done)
  RETURNING task_id INTO NEW.task_id;
  IF FOUND THEN
    NEW.outcome := 'created';
    RETURN NEW;
  END IF;
  SELECT k.task_id, 'skipped' INTO NEW.task_id, NEW.outcome FROM outbox.unique_key k
   WHERE k.task_type = NEW.task_type AND k.key = outbox.resolve_key(NEW.unique_key, NEW.payload);
  IF NEW.on_conflict <> 'skip' AND outbox.lock_waiting(NEW.task_id) = 'waiting' THEN
    IF NEW.on_conflict = 'reschedule' THEN
      UPDATE outbox.task t
         SET run_at = NEW.run_at,
             state  = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
               WHEN NEW.run_at > now() THEN 'scheduled' ELSE 'ready' END
       WHERE t.task_id = NEW.task_id;
    ELSE
      DELETE FROM outbox.running r WHERE r.task_id = NEW.task_id AND r.task_ids IS NULL
         AND (r.lost_connection OR NOT EXISTS (SELECT 1 FROM outbox.relay l
               WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp()));
      UPDATE outbox.task t
         SET run_at = NEW.run_at,
             state  = CASE WHEN t.state NOT IN ('ready', 'scheduled') THEN t.state
               WHEN NEW.run_at > now() THEN 'scheduled' ELSE 'ready' END,
             payload = NEW.payload, headers = NEW.headers, priority = NEW.priority,
             max_attempts = NEW.max_attempts, timeout_ms = NEW.timeout_ms,
             attempt = 0, last_error = NULL, relay_id = NULL,
             timeline = CASE WHEN t.timeline -> -1 ->> 'event' = 'replaced' THEN t.timeline
               WHEN t.timeline IS NOT NULL
                 THEN outbox.add_events(t.timeline, '[{"event": "replaced"}]') END
       WHERE t.task_id = NEW.task_id;
    END IF;
    NEW.outcome := 'updated';
  END IF;
  RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Locks up to so many of the first tasks of a lane for a group, and returns each as claim_tasks does,
-- with its place (ctid) before. The tasks are waiting tasks for all that the transaction does until
-- claim_member deletes them. That needs the transaction's own level for both: a lock and a delete of
-- different levels would make a MultiXact. If begins is true, the first is deleted here. With due_from
-- it goes by due time, as claim_tasks.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_group(
  of_type text, from_priority smallint, from_attempt smallint, from_id bigint, most smallint,
    up_to integer, begins boolean, due_from bigint DEFAULT NULL) RETURNS SETOF text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
  SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  places tid[];
  lines  text[];
BEGIN
  IF due_from IS NULL THEN
    SELECT array_agg(f.place), array_agg(f.line) INTO places, lines
      FROM (SELECT t.ctid AS place, concat_ws(E'\x1f', t.ctid, t.task_id, t.priority, t.attempt,
                     (date_part('epoch', t.run_at) * 1000000)::bigint,
                     CASE WHEN t.created_at <> t.run_at
                       THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
                     pg_current_xact_id(), COALESCE(outbox.optional_columns(t), ''), t.payload) AS line
              FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
               AND (t.priority, t.attempt, t.task_id) >= (from_priority, from_attempt, from_id)
               AND t.priority <= most
               AND NOT EXISTS (SELECT FROM outbox.task_type p
                                WHERE p.task_type = of_type AND p.paused)
             ORDER BY t.priority, t.attempt, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) AS f;
  ELSE
    SELECT array_agg(f.place), array_agg(f.line) INTO places, lines
      FROM (SELECT t.ctid AS place, concat_ws(E'\x1f', t.ctid, t.task_id, t.priority, t.attempt,
                     (date_part('epoch', t.run_at) * 1000000)::bigint,
                     CASE WHEN t.created_at <> t.run_at
                       THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
                     pg_current_xact_id(), COALESCE(outbox.optional_columns(t), ''), t.payload) AS line
              FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = of_type
               AND (t.run_at, t.task_id)
                >= (timestamptz 'epoch' + due_from * interval '1 microsecond', from_id)
               AND NOT EXISTS (SELECT FROM outbox.task_type p
                                WHERE p.task_type = of_type AND p.paused)
             ORDER BY t.run_at, t.task_id LIMIT up_to FOR UPDATE SKIP LOCKED) AS f;
  END IF;
  IF begins AND lines IS NOT NULL THEN
    DELETE FROM outbox.task t WHERE t.ctid = places[1];
  END IF;
  RETURN QUERY SELECT unnest(lines);
END
$$;
-- +goose StatementEnd

-- Deletes a task that claim_group has locked, if it is still as it was then: a handler of the group
-- may have changed or canceled it. It returns the transaction's id, and whether. The settings are the
-- transaction's, in milliseconds. The group counts what it has claimed so in one row, as it ends.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.claim_member(place tid, idle_timeout text, lock_timeout text,
  statement_timeout text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  claimed boolean;
  setting text := set_config('idle_in_transaction_session_timeout', idle_timeout, true)
    || set_config('lock_timeout', lock_timeout, true)
    || set_config('statement_timeout', statement_timeout, true)
    || set_config('outbox_group.counts', 'true', true);
BEGIN
  DELETE FROM outbox.task t WHERE t.ctid = place;
  claimed := FOUND;
  setting := set_config('outbox_group.counts', '', true);
  RETURN concat(pg_current_xact_id(), ' ', claimed);
END
$$;
-- +goose StatementEnd

-- As in 00020, but for the members of a group.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  IF current_setting('outbox_group.counts', true) = 'true' THEN
    PERFORM outbox.mark_headless(task_type, ordering_key) FROM removed
      WHERE ordering_key IS NOT NULL AND state <> 'waiting';
    RETURN NULL;
  END IF;
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT (-1)::bigint, 0::bigint, task_type, state FROM removed
   WHERE ordering_key IS NULL OR state = 'waiting'
      OR outbox.mark_headless(task_type, ordering_key)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind)
    SELECT -count(*), task_type, state
      FROM (SELECT task_type, state, ordering_key FROM removed OFFSET 3) AS rest
     WHERE ordering_key IS NULL OR state = 'waiting'
        OR outbox.mark_headless(task_type, ordering_key)
     GROUP BY task_type, state;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (33) ON CONFLICT DO NOTHING;
