-- Views and triggers, whose making locks views and tables. Those of the present state are made only
-- if this file has changed. PostgreSQL lets a view get columns at its end only (42P16).

-- Tasks with unique keys, to insert into with on_conflict, and to be told what came of it:
--   INSERT INTO outbox.keyed_task (task_type, payload, unique_key, on_conflict)
--   VALUES ... RETURNING task_id, outcome
CREATE OR REPLACE VIEW outbox.keyed_task AS
SELECT task_id, task_type, payload, priority, max_attempts, headers, run_at, timeout_ms,
       ordering_key, skip_failed, unique_key, unique_until_done,
       NULL::text AS on_conflict, NULL::text AS outcome, NULL::bigint AS position
  FROM outbox.task WHERE unique_key IS NOT NULL;
ALTER VIEW outbox.keyed_task ALTER COLUMN payload SET DEFAULT '{}';
ALTER VIEW outbox.keyed_task ALTER COLUMN priority SET DEFAULT 0;
ALTER VIEW outbox.keyed_task ALTER COLUMN run_at SET DEFAULT now();
ALTER VIEW outbox.keyed_task ALTER COLUMN skip_failed SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN unique_until_done SET DEFAULT false;
ALTER VIEW outbox.keyed_task ALTER COLUMN on_conflict SET DEFAULT 'skip';
COMMENT ON COLUMN outbox.keyed_task.on_conflict
  IS 'skip, replace (payload, headers, run_at, priority, max_attempts, timeout_ms; it begins anew) '
     'or reschedule (run_at)';
COMMENT ON COLUMN outbox.keyed_task.outcome
  IS 'RETURNING: created, updated or skipped; task_id is the task that has the key';
COMMENT ON COLUMN outbox.keyed_task.position IS 'RETURNING: as it was given';

-- The id of this database, in one row: task ids are unique together with it. It is no secret.
CREATE OR REPLACE VIEW outbox.identity AS
SELECT database_id FROM outbox.origin ORDER BY noted_at, database_id LIMIT 1;
GRANT SELECT ON outbox.identity TO PUBLIC;

-- Schedules that nobody fires: no living relay has the definition of the row, or a living relay has
-- a schedule whose row is missing. A definition is a hash of the payload too, so viewers see this
-- view instead. It is empty while a relay lives that does not say its schedules.
CREATE OR REPLACE VIEW outbox.unowned_schedule AS
WITH living AS MATERIALIZED (
  SELECT schedules FROM outbox.relay WHERE alive_until > clock_timestamp()),
known AS MATERIALIZED (
  SELECT DISTINCT k.key COLLATE "C" AS name, k.value COLLATE "C" AS definition
    FROM living CROSS JOIN LATERAL jsonb_each_text(schedules) AS k)
SELECT u.name, u.missing
  FROM (SELECT s.name, false AS missing FROM outbox.schedule s
         WHERE NOT paused AND next_at IS NOT NULL
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
    OR NEW.unique_key IS NOT NULL)
  EXECUTE FUNCTION outbox.task_arrive();
CREATE OR REPLACE TRIGGER task_left AFTER UPDATE OF ordering_key ON outbox.task
  FOR EACH ROW WHEN (OLD.ordering_key IS NOT NULL
    AND OLD.ordering_key IS DISTINCT FROM NEW.ordering_key)
  EXECUTE FUNCTION outbox.task_left();
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
  REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_added();
CREATE OR REPLACE TRIGGER dead_task_removed AFTER DELETE ON outbox.dead_task
  REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_removed();
CREATE OR REPLACE TRIGGER dead_task_truncated AFTER TRUNCATE ON outbox.dead_task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();
CREATE OR REPLACE TRIGGER keyed_task_insert INSTEAD OF INSERT ON outbox.keyed_task
  FOR EACH ROW EXECUTE FUNCTION outbox.keyed_task_insert();
