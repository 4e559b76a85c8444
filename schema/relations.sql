-- Views, triggers and comments, whose making locks views and tables. Those of the present state are made only
-- if this file has changed. PostgreSQL lets a view get columns at its end only (42P16).

-- Tasks with unique keys, to insert into with on_conflict, and to be told what came of it:
--   INSERT INTO outbox.keyed_task (task_type, payload, unique_key, on_conflict)
--   VALUES ... RETURNING task_id, outcome
CREATE OR REPLACE VIEW outbox.keyed_task AS
SELECT task_id, task_type, payload, priority, max_attempts, headers, run_at, timeout_ms,
       ordering_key, skip_failed, unique_key, unique_until_done,
       NULL::text AS on_conflict, NULL::text AS outcome, NULL::bigint AS position, group_key,
       expires_at, unique_until
  FROM outbox.task WHERE unique_key IS NOT NULL;
ALTER VIEW outbox.keyed_task ALTER COLUMN payload SET DEFAULT '{}';
ALTER VIEW outbox.keyed_task ALTER COLUMN priority SET DEFAULT 0;
ALTER VIEW outbox.keyed_task ALTER COLUMN run_at SET DEFAULT now();
ALTER VIEW outbox.keyed_task ALTER COLUMN skip_failed SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN unique_until_done SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN on_conflict SET DEFAULT 'skip';
COMMENT ON COLUMN outbox.keyed_task.on_conflict
  IS 'skip, replace (it begins anew as it is inserted here, and keeps ordering_key, group_key, '
     'skip_failed, unique_until_done and unique_until) or reschedule (run_at and expires_at)';
COMMENT ON COLUMN outbox.keyed_task.outcome
  IS 'RETURNING: created, updated or skipped; task_id is the task that has the key';
COMMENT ON COLUMN outbox.keyed_task.position IS 'RETURNING: as it was given';

-- The id of this database, in one row: task ids are unique together with it. It is no secret.
CREATE OR REPLACE VIEW outbox.identity AS
SELECT database_id FROM outbox.origin ORDER BY noted_at, database_id LIMIT 1;
GRANT SELECT ON outbox.identity TO PUBLIC;

-- Schedules of the code that nobody fires: no living relay has the definition of the row, or a living
-- relay has a schedule whose row is missing. A definition is a hash of the payload too, so viewers see this
-- view instead. It is empty while a relay lives that does not say its schedules.
CREATE OR REPLACE VIEW outbox.unowned_schedule AS
WITH living AS MATERIALIZED (
  SELECT schedules FROM outbox.relay WHERE alive_until > clock_timestamp()),
known AS MATERIALIZED (
  SELECT DISTINCT k.key COLLATE "C" AS name, k.value COLLATE "C" AS definition
    FROM living CROSS JOIN LATERAL jsonb_each_text(schedules) AS k)
SELECT u.name, u.missing
  FROM (SELECT s.name, false AS missing FROM outbox.schedule s
         WHERE NOT paused AND NOT s.stored AND next_at IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM known k
                            WHERE k.name = s.name AND k.definition = s.definition)
        UNION ALL
        SELECT DISTINCT k.name, true FROM known k
         WHERE NOT EXISTS (SELECT 1 FROM outbox.schedule s WHERE s.name = k.name)) u
 WHERE EXISTS (SELECT 1 FROM living)
   AND NOT EXISTS (SELECT 1 FROM living WHERE schedules IS NULL);

-- CURRENT_TIMESTAMP is now(), and no function that each statement would look up.
CREATE OR REPLACE TRIGGER task_arrive BEFORE INSERT ON outbox.task
  FOR EACH ROW WHEN (NEW.run_at > CURRENT_TIMESTAMP OR NEW.ordering_key IS NOT NULL
    OR NEW.unique_key IS NOT NULL OR NEW.group_key IS NOT NULL)
  EXECUTE FUNCTION outbox.task_arrive();
CREATE OR REPLACE TRIGGER task_left AFTER UPDATE OF ordering_key ON outbox.task
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL
    AND OLD.ordering_key IS DISTINCT FROM NEW.ordering_key)
  EXECUTE FUNCTION outbox.task_left();
CREATE OR REPLACE TRIGGER task_grouped BEFORE UPDATE OF state, run_at ON outbox.task
  FOR EACH ROW WHEN (NEW.group_key IS NOT NULL) EXECUTE FUNCTION outbox.task_grouped();
CREATE OR REPLACE TRIGGER task_wake AFTER INSERT ON outbox.task REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_wake();
CREATE OR REPLACE TRIGGER task_removed AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_removed();
CREATE OR REPLACE TRIGGER task_changed AFTER UPDATE ON outbox.task
  REFERENCING OLD TABLE AS removed NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_changed();
CREATE OR REPLACE TRIGGER task_truncated AFTER TRUNCATE ON outbox.task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();
CREATE OR REPLACE TRIGGER dead_task_added AFTER INSERT ON outbox.dead_task
  REFERENCING NEW TABLE AS changed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_changed();
CREATE OR REPLACE TRIGGER dead_task_removed AFTER DELETE ON outbox.dead_task
  REFERENCING OLD TABLE AS changed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_changed();
CREATE OR REPLACE TRIGGER dead_task_truncated AFTER TRUNCATE ON outbox.dead_task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();
CREATE OR REPLACE TRIGGER keyed_task_insert INSTEAD OF INSERT ON outbox.keyed_task
  FOR EACH ROW EXECUTE FUNCTION outbox.keyed_task_insert();

-- What psql shows of the tables.
COMMENT ON COLUMN outbox.migration.oldest_version
  IS 'code whose newest migration is this one, or newer, may run beside this migration; '
     'NULL: only code that has it';
COMMENT ON COLUMN outbox.migration.functions
  IS 'hash of the functions that are there since this migration; NULL: those from before';
COMMENT ON COLUMN outbox.migration.relations IS 'likewise, of the views and triggers';
COMMENT ON COLUMN outbox.task.relay_id
  IS 'leased: the relay that holds the lease; otherwise: the relay that died while it ran this '
     'task';
COMMENT ON COLUMN outbox.task.priority     IS 'lower runs first; 0 is normal';
COMMENT ON COLUMN outbox.task.attempt      IS 'attempts begun and counted; 0 until the first';
COMMENT ON COLUMN outbox.task.max_attempts IS 'NULL: as the handler was registered';
COMMENT ON COLUMN outbox.task.timeout_ms   IS 'of one run; NULL: as the handler was registered';
COMMENT ON COLUMN outbox.task.iterations
  IS 'how often its handler returned RunAgain; 0 until the first time';
COMMENT ON COLUMN outbox.task.ordering_key
  IS 'tasks of one type and key run one after the other; NULL: in no order';
COMMENT ON COLUMN outbox.task.group_key
  IS 'of one type and key so many tasks run at once as task_type says; NULL: any number';
COMMENT ON COLUMN outbox.task.group_place
  IS 'the place of its key that it has, from 1; NULL: none, so it does not run, or no key';
COMMENT ON COLUMN outbox.task.skip_failed
  IS 'after a failed attempt the task leaves the order, and the key goes on';
COMMENT ON COLUMN outbox.task.expires_at
  IS 'it does not run if no attempt has begun by then; NULL: it does not expire';
COMMENT ON COLUMN outbox.task.unique_key
  IS 'at most one waiting task of a type has it; insert $payload to have it made of the payload';
COMMENT ON COLUMN outbox.task.unique_until_done
  IS 'the task keeps its key while it runs and through its retries';
COMMENT ON COLUMN outbox.task.unique_until
  IS 'its key is taken until then, whatever becomes of it; NULL: no longer than the task waits';
COMMENT ON COLUMN outbox.unique_key.keep_until
  IS 'the key is taken until then, also if its task is gone; NULL: no longer than the task';
COMMENT ON COLUMN outbox.task.timeline
  IS 'failed, throttled and lost runs, deaths, redrives and replacements, the oldest first, at most '
     '20; NULL: none';
COMMENT ON COLUMN outbox.dead_task.reason
  IS 'attempts: all were used; handler: it returned Dead, or its backoff said stop; '
     'lost_connections: ten runs lost their connection; '
     'committed: the handler committed the claim and then failed; '
     'expired: it had not begun by expires_at';
COMMENT ON COLUMN outbox.dead_task.max_attempts
  IS 'the limit that held: the task''s own or its handler''s';
COMMENT ON COLUMN outbox.dead_task.task_max_attempts
  IS 'the task''s own limit, which a redriven task gets back; NULL: it had none';
COMMENT ON COLUMN outbox.done_task.keep_until IS 'relays delete the row after this time';
COMMENT ON COLUMN outbox.done_task.last_error
  IS 'the error of a result such as Discard; NULL: none';
COMMENT ON COLUMN outbox.done_task.outcome
  IS 'what it ended as; NULL, of older code: done without last_error, else discarded';
COMMENT ON COLUMN outbox.running.task_ids IS 'a batch: all its tasks; NULL: the one task';
COMMENT ON COLUMN outbox.running.xid      IS 'a batch: the transaction of its claim';
COMMENT ON COLUMN outbox.relay.workers     IS 'handler calls at once; NULL: not known';
COMMENT ON COLUMN outbox.relay.connections IS 'of its pool; NULL: not known, or any number';
COMMENT ON COLUMN outbox.relay.taken_over_at
  IS 'when another relay last found this one dead, and took over what it held; NULL: alive';
COMMENT ON COLUMN outbox.relay.schedules
  IS 'the definition of each schedule in its Config, by name; NULL: not known';
COMMENT ON COLUMN outbox.relay.limits
  IS 'workers that one type may have, and by type the limits of each relay and of all; NULL: not known';
COMMENT ON COLUMN outbox.relay.parses IS 'whether it fires schedules that operators store';
COMMENT ON COLUMN outbox.schedule.stored
  IS 'by an operator: any relay that parses fires it as it is here';
COMMENT ON COLUMN outbox.schedule.time_zone IS 'of a stored one: its times of day are in it; empty: UTC';
COMMENT ON COLUMN outbox.schedule.wrong IS 'why a relay could not fire a stored one; NULL: nothing';
COMMENT ON COLUMN outbox.schedule.next_at
  IS 'the next firing; NULL: it has ended, its Next misbehaved, or no relay has seen a stored one';
COMMENT ON COLUMN outbox.schedule.last_at IS 'the latest firing that enqueued a task';
COMMENT ON COLUMN outbox.schedule.payload
  IS 'of a stored one what is enqueued; of the code''s as last registered, to be read';
COMMENT ON COLUMN outbox.schedule.timing
  IS 'a hash of when it fires: when it changes, next_at is computed anew';
COMMENT ON COLUMN outbox.schedule.definition
  IS 'a hash of all of it: only relays that know this very schedule fire it';
COMMENT ON COLUMN outbox.task_type.paused IS 'no relay claims its tasks';
COMMENT ON COLUMN outbox.task_type.max_running
  IS 'handler calls at once in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.max_running_per_key
  IS 'places of each group key; NULL: one';
COMMENT ON COLUMN outbox.task_type.rate
  IS 'tasks that may start in rate_per, in all relays; NULL: any number';
COMMENT ON COLUMN outbox.task_type.rate_per IS 'microseconds';
COMMENT ON COLUMN outbox.counter.tasks IS 'now; failed, canceled and expired: ever';
COMMENT ON COLUMN outbox.counter.arrived
  IS 'dead: ever died; the states together: ever enqueued, so that finished = arrived - tasks, '
     'less what died, was canceled and expired';
COMMENT ON COLUMN outbox.sample.finished IS 'since the counters began, as failed';
COMMENT ON COLUMN outbox.sample.oldest_ready
  IS 'for how long the ready task that waits longest had been due, in microseconds';
COMMENT ON COLUMN outbox.audit.target
  IS 'a task type, a task id, a filter in words; never a payload';
COMMENT ON COLUMN outbox.audit.count IS 'how many tasks it was about';
COMMENT ON COLUMN outbox.inbox.keep_until
  IS 'relays delete the row after this time; a repetition is not noticed any more then';
COMMENT ON TABLE outbox.origin IS 'the database that the tasks are of, as it was noted';
COMMENT ON COLUMN outbox.origin.database_id
  IS 'made by the migration, and anew by the command outbox adopt';
COMMENT ON COLUMN outbox.origin.system_id IS 'of pg_control_system(); NULL: hidden';
COMMENT ON COLUMN outbox.origin.table_oid
  IS 'of this table: a dump does not keep it, pg_upgrade and physical copies do';
COMMENT ON COLUMN outbox.origin.server_version IS 'the major version';
COMMENT ON COLUMN outbox.origin.mark
  IS 'oid and label of the type mark: a dump keeps no oid, and one of the data alone no label';
COMMENT ON COLUMN outbox.origin.refused_environment
  IS 'relay.Config.Environment of the latest relay that runs nothing, as it is another one';
COMMENT ON COLUMN outbox.origin.refused_at IS 'when that relay tried, to half a minute';
COMMENT ON SEQUENCE outbox.home
  IS 'the oid of the database in which all that waits was enqueued: made by a template, it is another';
COMMENT ON COLUMN outbox.origin.environment
  IS 'relay.Config.Environment of the first relay that named one';
