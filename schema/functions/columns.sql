-- The functions that name the optional columns of a task. No other function loses a column that it
-- does not name.
--
-- A new column is NULL unless a task uses it. It is named in rest, and in keyed_task_insert if an app
-- may set it.

-- Returns the columns that few tasks use, as one object; NULL if the task uses none of them. A leased
-- task's attempted_at is of the present run.
--
-- The body is a text: PostgreSQL refuses a new column with a default while a parsed one (RETURN,
-- BEGIN ATOMIC) depends on the type of the table's rows. A claim inlines the text, so it has no SET,
-- and each name in it has its schema.
CREATE OR REPLACE FUNCTION outbox.rest(t outbox.task) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN pg_catalog.num_nonnulls(t.max_attempts, t.headers, t.last_error, t.timeout_ms, t.ordering_key,
                                 t.unique_key, t.timeline) OPERATOR(pg_catalog.=) 0
     AND (t.attempted_at IS NULL OR t.state OPERATOR(pg_catalog.=) 'leased')
     AND NOT (t.iterations OPERATOR(pg_catalog.>) 0 OR t.skip_failed OR t.unique_until_done) THEN NULL
    ELSE pg_catalog.to_jsonb(t) OPERATOR(pg_catalog.-)
      '{task_id,run_at,created_at,leased_until,relay_id,lease_token,priority,attempt,
        state,task_type,payload}'::pg_catalog.text[]
  END
$$;

-- Inserts a task with a unique key, or does to the waiting task that has the key as on_conflict says.
-- A replaced task begins anew, so its lost runs go from the journal as well. Rows that a living relay
-- writes stay: that relay would wait for this transaction.
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
REVOKE EXECUTE ON FUNCTION outbox.keyed_task_insert() FROM PUBLIC;
