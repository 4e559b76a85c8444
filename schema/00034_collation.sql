-- +goose Up
-- The outbox's own text is compared by its bytes, whatever the database's collation: an index in the
-- order of a locale misses rows once another version of libc or ICU has another order.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00034_collation.sql
--
-- It holds ACCESS EXCLUSIVE locks on all tables with such text while PostgreSQL rebuilds their
-- indexes, and rewrites no table. It takes all locks at the start. Other transactions may lock these
-- tables in any order. So it gives up, with 55P03, before a transaction that waits for it could
-- become the victim of a deadlock: try it again, as Migrate does.
--
-- It fails where a view, a policy, or a trigger's or publication's WHEN or WHERE of the app's names
-- one of these columns: drop it before, and create it again.

-- +goose StatementBegin
DO $$
DECLARE
  again     text[]; -- what has to stand aside
  grants    text[];
  statement text;
  lock_timeout text := current_setting('lock_timeout');
  patience     integer; -- in milliseconds, for all locks but the first
  locked       timestamptz;
BEGIN
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'outbox.task'::regclass
                AND attname = 'task_type' AND attcollation = 'pg_catalog."C"'::regcollation) THEN
    RETURN;
  END IF;
  -- Others hold the first lock longest. A transaction that waits for it looks for deadlocks after
  -- deadlock_timeout: the migration has all locks by then, or none.
  LOCK TABLE outbox.task IN ACCESS EXCLUSIVE MODE;
  locked := clock_timestamp();
  SELECT min(CASE WHEN name = 'deadlock_timeout' THEN setting::integer * 2 / 3
                  ELSE NULLIF(setting::integer, 0) END)
    INTO patience FROM pg_settings WHERE name IN ('lock_timeout', 'deadlock_timeout');
  FOREACH statement IN ARRAY ARRAY['keyed_task', 'inbox', 'unique_key', 'headless_key', 'dead_task',
    'done_task', 'counter_log', 'counter', 'sample', 'slot', 'bucket', 'task_type', 'schedule',
    'maintenance', 'audit', 'relay'] LOOP
    PERFORM set_config('lock_timeout', GREATEST(1, patience
      - extract(epoch FROM clock_timestamp() - locked) * 1000)::integer::text, true);
    EXECUTE format('LOCK TABLE outbox.%I IN ACCESS EXCLUSIVE MODE', statement);
  END LOOP;
  PERFORM set_config('lock_timeout', lock_timeout, true);

  -- What names columns stands aside, and comes again as it is now. The rights of a view that is
  -- dropped are gone, those of a function that is replaced are not.
  again := ARRAY[
    pg_get_functiondef('outbox.optional_columns(outbox.task)'::regprocedure),
    'CREATE VIEW outbox.keyed_task AS ' || pg_get_viewdef('outbox.keyed_task'::regclass),
    (SELECT format('ALTER VIEW outbox.keyed_task OWNER TO %s', relowner::regrole) FROM pg_class
      WHERE oid = 'outbox.keyed_task'::regclass)]
    || ARRAY(SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'outbox.keyed_task'::regclass
          OR tgrelid = 'outbox.task'::regclass AND tgname IN ('task_arrive', 'task_left'))
    || ARRAY(SELECT format('ALTER VIEW outbox.keyed_task ALTER COLUMN %I SET DEFAULT %s',
                           attname, pg_get_expr(adbin, adrelid))
               FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
              WHERE adrelid = 'outbox.keyed_task'::regclass)
    || ARRAY(SELECT format('COMMENT ON COLUMN outbox.keyed_task.%I IS %L',
                           attname, col_description(attrelid, attnum))
               FROM pg_attribute WHERE attrelid = 'outbox.keyed_task'::regclass
                AND col_description(attrelid, attnum) IS NOT NULL);
  grants := ARRAY(
    SELECT format('GRANT %s%s ON outbox.keyed_task TO %s%s', r.privilege_type, a.of_column,
                  CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END,
                  CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' END)
      FROM (SELECT relacl AS acl, '' AS of_column FROM pg_class
             WHERE oid = 'outbox.keyed_task'::regclass
            UNION ALL SELECT attacl, format(' (%I)', attname) FROM pg_attribute
             WHERE attrelid = 'outbox.keyed_task'::regclass) AS a,
           aclexplode(a.acl) AS r);
  DROP VIEW outbox.keyed_task;
  DROP TRIGGER task_arrive ON outbox.task;
  DROP TRIGGER task_left ON outbox.task;
  CREATE OR REPLACE FUNCTION outbox.optional_columns(t outbox.task) RETURNS text LANGUAGE sql STABLE
    RETURN NULL::text;

  -- The largest come first. What people read, last_error, stays as it is.
  ALTER TABLE outbox.task
    ALTER COLUMN state TYPE text COLLATE "C", ALTER COLUMN task_type TYPE text COLLATE "C",
    ALTER COLUMN ordering_key TYPE text COLLATE "C", ALTER COLUMN unique_key TYPE text COLLATE "C";
  ALTER TABLE outbox.dead_task
    ALTER COLUMN reason TYPE text COLLATE "C", ALTER COLUMN task_type TYPE text COLLATE "C",
    ALTER COLUMN ordering_key TYPE text COLLATE "C", ALTER COLUMN unique_key TYPE text COLLATE "C";
  ALTER TABLE outbox.done_task ALTER COLUMN task_type TYPE text COLLATE "C";
  ALTER TABLE outbox.inbox
    ALTER COLUMN source TYPE text COLLATE "C", ALTER COLUMN event_id TYPE text COLLATE "C";
  ALTER TABLE outbox.unique_key
    ALTER COLUMN task_type TYPE text COLLATE "C", ALTER COLUMN key TYPE text COLLATE "C";
  ALTER TABLE outbox.headless_key
    ALTER COLUMN task_type TYPE text COLLATE "C", ALTER COLUMN ordering_key TYPE text COLLATE "C";
  ALTER TABLE outbox.counter_log
    ALTER COLUMN task_type TYPE text COLLATE "C", ALTER COLUMN kind TYPE text COLLATE "C";
  ALTER TABLE outbox.counter
    ALTER COLUMN task_type TYPE text COLLATE "C", ALTER COLUMN kind TYPE text COLLATE "C";
  ALTER TABLE outbox.sample ALTER COLUMN task_type TYPE text COLLATE "C";
  ALTER TABLE outbox.slot ALTER COLUMN task_type TYPE text COLLATE "C";
  ALTER TABLE outbox.bucket ALTER COLUMN task_type TYPE text COLLATE "C";
  ALTER TABLE outbox.task_type ALTER COLUMN task_type TYPE text COLLATE "C";
  ALTER TABLE outbox.schedule
    ALTER COLUMN name TYPE text COLLATE "C", ALTER COLUMN catch_up TYPE text COLLATE "C",
    ALTER COLUMN task_type TYPE text COLLATE "C", ALTER COLUMN spec TYPE text COLLATE "C",
    ALTER COLUMN timing TYPE text COLLATE "C", ALTER COLUMN definition TYPE text COLLATE "C";
  ALTER TABLE outbox.maintenance ALTER COLUMN job TYPE text COLLATE "C";
  ALTER TABLE outbox.audit
    ALTER COLUMN actor TYPE text COLLATE "C", ALTER COLUMN tool TYPE text COLLATE "C",
    ALTER COLUMN action TYPE text COLLATE "C", ALTER COLUMN target TYPE text COLLATE "C";

  FOREACH statement IN ARRAY again LOOP
    EXECUTE statement;
  END LOOP;
  FOR statement IN -- what new tables and views have by ALTER DEFAULT PRIVILEGES
    SELECT format('REVOKE ALL ON outbox.keyed_task FROM %s',
                  CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END)
      FROM pg_class c, aclexplode(c.relacl) AS r
     WHERE c.oid = 'outbox.keyed_task'::regclass AND r.grantee <> c.relowner
  LOOP
    EXECUTE statement;
  END LOOP;
  FOREACH statement IN ARRAY grants LOOP
    EXECUTE statement;
  END LOOP;

  -- The statistics of these columns are gone. An empty table has none to be had.
  FOR statement IN
    SELECT format('ANALYZE %s', oid::regclass) FROM pg_class
     WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND reltuples > 0
  LOOP
    EXECUTE statement;
  END LOOP;

  ALTER TABLE outbox.relay
    ALTER COLUMN host TYPE text COLLATE "C", ALTER COLUMN task_types TYPE text[] COLLATE "C";
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (34) ON CONFLICT DO NOTHING;
