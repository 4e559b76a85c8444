-- Roles of the outbox: the owner, and four groups that are given no more than they need.
-- docs/security.md says what each may do.
-- Apply it after the migrations, and again after each new one: it says all that the groups have,
-- and changes nothing else the second time.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f roles.sql

-- One at a time, and none beside a migration.
LOCK TABLE outbox.migration IN EXCLUSIVE MODE;

-- Roles are the server's: they may be there, or come from another database at this moment.
DO $$
DECLARE
  role text;
BEGIN
  FOREACH role IN ARRAY ARRAY['outbox_owner', 'outbox_enqueuer', 'outbox_worker', 'outbox_viewer', 'outbox_operator'] LOOP
    IF to_regrole(role) IS NULL THEN
      BEGIN
        EXECUTE 'CREATE ROLE ' || role || ' NOLOGIN';
      EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;
      END;
    END IF;
  END LOOP;
END
$$;

-- Who owned the outbox, and who runs this, are members of the owner: both could do all that it
-- can. Other roles that own something in the
-- schema get nothing by that.
DO $$
DECLARE
  member regrole;
BEGIN
  FOR member IN
    SELECT relowner FROM pg_class WHERE oid = 'outbox.migration'::regclass
    UNION SELECT oid FROM pg_roles WHERE rolname = current_user
  LOOP
    IF NOT pg_has_role(member, to_regrole('outbox_owner'), 'USAGE') THEN
      EXECUTE format('GRANT outbox_owner TO %s', member);
    END IF;
    IF NOT pg_has_role(member, to_regrole('outbox_owner'), 'USAGE') THEN
      RAISE EXCEPTION 'the role % would lose its rights: it is NOINHERIT, so being a member of the owner gives it none', member
        USING ERRCODE = 'insufficient_privilege';
    END IF;
  END LOOP;
END
$$;

-- The owner owns the schema and what its members had in it, so SECURITY DEFINER functions have the
-- rights of a role that has nothing else.
-- ALTER ... OWNER waits for all who use a table, so nothing is altered twice, and those come first
-- with which enqueues begin: who has not begun
-- then waits without a lock that this waits for.
DO $$
DECLARE
  statement text;
BEGIN
  FOR statement IN
    SELECT 'ALTER SCHEMA outbox OWNER TO outbox_owner', 0 AS position FROM pg_namespace
     WHERE oid = 'outbox'::regnamespace AND nspowner <> to_regrole('outbox_owner')
    UNION ALL
    SELECT format('ALTER TABLE %s OWNER TO outbox_owner', c.oid::regclass), CASE c.relname WHEN 'keyed_task' THEN 1 WHEN 'task' THEN 2 ELSE 3 END
      FROM pg_class c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
       AND c.relowner <> to_regrole('outbox_owner') AND pg_has_role(c.relowner, to_regrole('outbox_owner'), 'USAGE')
       AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i', 'e'))
    UNION ALL
    SELECT format('ALTER ROUTINE %s OWNER TO outbox_owner', p.oid::regprocedure), 4 FROM pg_proc p
     WHERE p.pronamespace = 'outbox'::regnamespace
       AND p.proowner <> to_regrole('outbox_owner') AND pg_has_role(p.proowner, to_regrole('outbox_owner'), 'USAGE')
       AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
    UNION ALL
    SELECT format('ALTER TYPE %s OWNER TO outbox_owner', t.oid::regtype), 5 FROM pg_type t
     WHERE t.oid = to_regtype('outbox.mark')
       AND t.typowner <> to_regrole('outbox_owner') AND pg_has_role(t.typowner, to_regrole('outbox_owner'), 'USAGE')
     ORDER BY position
  LOOP
    EXECUTE statement;
  END LOOP;
END
$$;

-- What the groups have had, so that they have what follows and nothing else; and what PUBLIC may
-- call.
DO $$
DECLARE
  statement text;
BEGIN
  FOR statement IN
    SELECT format('REVOKE ALL ON %s %s FROM outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator',
             CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass)
      FROM pg_class c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND c.relowner = to_regrole('outbox_owner')
    UNION ALL
    SELECT format('REVOKE ALL ON ROUTINE %s FROM PUBLIC, outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator', p.oid::regprocedure)
      FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.proowner = to_regrole('outbox_owner')
  LOOP
    EXECUTE statement;
  END LOOP;
END
$$;
REVOKE ALL ON SCHEMA outbox FROM outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator;
REVOKE CREATE ON SCHEMA outbox FROM PUBLIC;

-- The versions are no secret, and who calls schema.Migrate or schema.Check at its start reads them.
GRANT USAGE ON SCHEMA outbox TO outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator;
GRANT SELECT ON outbox.migration TO outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator;
-- Nor is the id of the database.
GRANT SELECT ON outbox.identity TO outbox_enqueuer, outbox_worker, outbox_viewer, outbox_operator;

-- To enqueue takes INSERT and what RETURNING says. An app may set the columns that the view keyed_task
-- has. The relays' columns (state, attempt, the lease) are not among these.
DO $$
DECLARE
  settable CONSTANT text := (
    SELECT string_agg(quote_ident(v.attname), ', ')
      FROM pg_attribute v JOIN pg_attribute t ON t.attname = v.attname AND NOT t.attisdropped
     WHERE v.attrelid = 'outbox.keyed_task'::regclass AND t.attrelid = 'outbox.task'::regclass
       AND v.attname <> 'task_id');
BEGIN
  EXECUTE format('GRANT INSERT (%s), SELECT (task_id) ON outbox.task TO outbox_enqueuer', settable);
  EXECUTE format('GRANT INSERT (%s, on_conflict, position), SELECT (task_id, outcome, position)
    ON outbox.keyed_task TO outbox_enqueuer, outbox_worker', settable);
END
$$;
GRANT INSERT (source, event_id, keep_until) ON outbox.inbox TO outbox_enqueuer;
GRANT EXECUTE ON FUNCTION outbox.enqueue_task, outbox.enqueue_keyed TO outbox_enqueuer, outbox_worker;

-- A relay, whose handlers enqueue and cancel with its rights.
GRANT SELECT, INSERT, UPDATE, DELETE
   ON outbox.task, outbox.dead_task, outbox.done_task, outbox.relay, outbox.running, outbox.counter, outbox.counter_log, outbox.maintenance,
      outbox.cancel, outbox.schedule, outbox.task_type, outbox.slot, outbox.bucket,
      outbox.headless_key, outbox.place_request,
      outbox.unique_key, outbox.sample, outbox.inbox, outbox.origin
   TO outbox_worker;
GRANT SELECT, INSERT, UPDATE ON outbox.promote_lock TO outbox_worker;
GRANT SELECT, UPDATE ON SEQUENCE outbox.wake, outbox.headless_key_headless_key_id_seq TO outbox_worker;
-- admin.Client.Tail asks relays to tell what they do.
GRANT SELECT, UPDATE ON SEQUENCE outbox.tail TO outbox_worker, outbox_viewer, outbox_operator;
GRANT EXECUTE ON FUNCTION
      outbox.poll, outbox.rest, outbox.claimed, outbox.whole, outbox.timeline, outbox.lacking,
      outbox.row_of, outbox.with_defaults,
      outbox.put_back, outbox.bury, outbox.expire_tasks, outbox.keep,
      outbox.promote_places, outbox.claim_tasks, outbox.claim_group, outbox.claim_member,
      outbox.lease_tasks, outbox.finish_tasks, outbox.complete_task,
      outbox.record_runs, outbox.record_batch, outbox.split_lost, outbox.claim_ended, outbox.end_run,
      outbox.cancel_task, outbox.run_task_now, outbox.task_end, outbox.change_tasks, outbox.set_payload,
      outbox.put_schedule, outbox.fire_schedule,
      outbox.add_events, outbox.lost_runs, outbox.this_database, outbox.this_mark, outbox.mark_origin,
      outbox.note_origin
   TO outbox_worker;
-- A relay may start right after a migration that made new tables, before this is applied again.
ALTER DEFAULT PRIVILEGES FOR ROLE outbox_owner IN SCHEMA outbox GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO outbox_worker;
ALTER DEFAULT PRIVILEGES FOR ROLE outbox_owner IN SCHEMA outbox GRANT SELECT, UPDATE ON SEQUENCES TO outbox_worker;
-- Nobody else may call new functions until then. What PUBLIC has by default cannot be taken away
-- in a schema only.
ALTER DEFAULT PRIVILEGES FOR ROLE outbox_owner REVOKE EXECUTE ON ROUTINES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE outbox_owner IN SCHEMA outbox GRANT EXECUTE ON ROUTINES TO outbox_worker;

-- Tasks in any state, without payloads, headers, keys (which may be made of payloads) and the
-- tokens of
-- leases.
GRANT SELECT (task_id, run_at, created_at, attempted_at, leased_until, relay_id, priority, attempt, max_attempts, state,
              task_type, last_error, timeline, unique_until_done, timeout_ms, iterations, skip_failed,
              expires_at, unique_until)
   ON outbox.task, outbox.dead_task, outbox.done_task TO outbox_viewer, outbox_operator;
GRANT SELECT (died_at, task_max_attempts, reason) ON outbox.dead_task TO outbox_viewer, outbox_operator;
GRANT SELECT (finished_at, keep_until, outcome) ON outbox.done_task TO outbox_viewer, outbox_operator;
GRANT SELECT (name, next_at, last_at, created_at, paused, catch_up, task_type, spec, stored, time_zone, wrong)
   ON outbox.schedule TO outbox_viewer, outbox_operator;
GRANT SELECT (task_id, relay_id, lost_connection, started_at, task_ids, first_id, last_id)
   ON outbox.running TO outbox_viewer, outbox_operator;
GRANT SELECT (relay_id, host, pid, started_at, alive_until, task_types, workers, connections, taken_over_at, limits,
              parses, progress, tells)
   ON outbox.relay TO outbox_viewer, outbox_operator;
GRANT SELECT ON outbox.origin TO outbox_viewer, outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.origin_state, outbox.kind_of, outbox.waits_for
   TO outbox_worker, outbox_viewer, outbox_operator;
GRANT SELECT ON outbox.unowned_schedule TO outbox_worker, outbox_viewer, outbox_operator;
GRANT SELECT ON outbox.counter, outbox.counter_log, outbox.maintenance, outbox.cancel, outbox.task_type, outbox.bucket, outbox.sample
   TO outbox_viewer, outbox_operator;
-- Which ids were given, for admin.Client.Defects and the doctor.
GRANT SELECT (task_id) ON outbox.unique_key TO outbox_viewer, outbox_operator;
GRANT SELECT (headless_key_id) ON outbox.headless_key TO outbox_viewer, outbox_operator;
GRANT SELECT (place_request_id) ON outbox.place_request TO outbox_viewer, outbox_operator;
GRANT SELECT ON SEQUENCE outbox.task_task_id_seq, outbox.headless_key_headless_key_id_seq, outbox.cancel_cancel_id_seq, outbox.audit_entry_id_seq
   TO outbox_worker, outbox_viewer, outbox_operator;
-- Who did what by hand is added to by those who may do it, and changed by nobody.
GRANT SELECT ON outbox.audit TO outbox_worker, outbox_viewer, outbox_operator;
GRANT INSERT (actor, tool, action, target, count) ON outbox.audit TO outbox_worker, outbox_operator;

-- Dead letters: an operator may read them. Redrive writes tasks with the owner's rights, as an
-- INSERT with an id would let an operator take the ids of tasks to come.
GRANT SELECT, DELETE, UPDATE (run_at) ON outbox.dead_task TO outbox_operator; -- FOR UPDATE takes UPDATE of some column
GRANT EXECUTE ON FUNCTION outbox.redrive TO outbox_worker, outbox_operator;
-- admin.Client.HandBack.
GRANT EXECUTE ON FUNCTION outbox.add_events TO outbox_operator;
GRANT UPDATE (state, lease_token, leased_until, timeline) ON outbox.task TO outbox_operator;
-- outbox.Cancel and RunNow; the actions of admin.Client on tasks, PauseType and ResumeType; the same for
-- schedules, and RemoveSchedule.
GRANT EXECUTE ON FUNCTION outbox.cancel_task, outbox.run_task_now, outbox.change_tasks, outbox.set_payload,
      outbox.put_schedule, outbox.fire_schedule
   TO outbox_operator;
GRANT INSERT (task_type, paused), UPDATE (paused) ON outbox.task_type TO outbox_operator;
GRANT DELETE, UPDATE (paused) ON outbox.schedule TO outbox_operator;
-- admin.Client.Adopt, which does the rest with the owner's rights.
GRANT EXECUTE ON FUNCTION outbox.adopt TO outbox_operator;
