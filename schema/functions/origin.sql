-- Which database the tasks are of.

-- Returns what this database is.
CREATE OR REPLACE FUNCTION outbox.this_database(
  OUT name text, OUT system_id bigint, OUT database_oid oid, OUT table_oid oid,
  OUT server_version integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  SELECT d.datname, d.oid INTO name, database_oid
    FROM pg_database d WHERE d.datname = current_database();
  table_oid := 'outbox.origin'::regclass;
  server_version := current_setting('server_version_num')::integer / 10000;
  BEGIN
    system_id := c.system_identifier FROM pg_control_system() c;
  EXCEPTION WHEN OTHERS THEN -- a right is missing, or the provider hides it
    system_id := NULL;
  END;
END
$$;

-- Returns the mark of this schema in the catalog: the oid and the label of the type mark.
-- Maintenance, pg_upgrade and physical copies keep both. A dump makes another oid, and one of the
-- data alone brings no label.
CREATE OR REPLACE FUNCTION outbox.this_mark() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  RETURN (
    SELECT concat_ws(' ', enumtypid, enumlabel) FROM pg_enum
     WHERE enumtypid = to_regtype('outbox.mark') ORDER BY enumsortorder LIMIT 1);
END
$$;

-- Reports whether more than n tasks wait, or what makes tasks: dead letters and schedules.
CREATE OR REPLACE FUNCTION outbox.waits(more_than bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  RETURN more_than < (SELECT count(*) FROM (SELECT FROM outbox.task LIMIT more_than + 1) AS t)
      OR EXISTS (SELECT FROM outbox.dead_task) OR EXISTS (SELECT FROM outbox.schedule);
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.waits(bigint) FROM PUBLIC;

-- Returns what was noted, and whether that is this database. A relay of that environment is refused if
-- any row says so. These are the own database:
--   the same server and database, whatever was restored in it, but no copy beside its original;
--   where the server's identifier is hidden, or pg_upgrade to a newer version has made another one:
--     the same database with the same catalog;
--   one made by CREATE DATABASE with a TEMPLATE, which has the same catalog, if all that waits was
--     enqueued in it: nothing waited in the template.
CREATE OR REPLACE FUNCTION outbox.origin_state(
  of_environment text,
  OUT database_id uuid, OUT database_name text, OUT environment text, OUT noted_at timestamptz,
  OUT hidden boolean, OUT own boolean, OUT refused boolean) RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  this record;
  o    record;
  rows bigint;
  kept boolean; -- the catalog was not made by a restore, and the server may be the same
  beside regnamespace; -- another schema here, which has the noted table
BEGIN
  SELECT t.*, outbox.this_mark() AS mark INTO this FROM outbox.this_database() t;
  SELECT count(*) INTO rows FROM outbox.origin;
  FOR o IN SELECT * FROM outbox.origin LOOP
    kept := o.table_oid = this.table_oid AND COALESCE(o.mark = this.mark, false)
        AND (COALESCE(o.system_id = this.system_id, true) OR o.server_version < this.server_version);
    beside := NULL;
    IF o.database_oid = this.database_oid THEN
      own := kept OR COALESCE(o.system_id = this.system_id, false);
      beside := relnamespace::regnamespace FROM pg_class
                 WHERE oid = o.table_oid AND oid <> this.table_oid AND relname = 'origin';
      own := own AND beside IS NULL;
    ELSE
      own := kept AND (
        COALESCE(pg_sequence_last_value('outbox.home'::regclass) = this.database_oid::bigint, false)
        OR NOT outbox.waits(0));
    END IF;
    database_id := o.database_id;
    database_name := o.database_name || COALESCE(', schema ' || beside, '');
    environment := o.environment;
    noted_at := o.noted_at;
    hidden := o.system_id IS NULL;
    refused := NOT own OR rows > 1 OR COALESCE(o.environment <> NULLIF(of_environment, ''), false);
    RETURN NEXT;
  END LOOP;
END
$$;

-- Notes in the sequence home that all that waits was enqueued in this database, if nothing but the
-- new_tasks waits, or origin says that this is the tasks' database. The trigger of INSERT calls it
-- until that is noted. A rollback brings back rows that this transaction has deleted, and does not
-- undo setval: in such a transaction nothing is noted.
CREATE OR REPLACE FUNCTION outbox.settle(new_tasks bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  judged CONSTANT regclass[] := ARRAY['outbox.task', 'outbox.dead_task', 'outbox.schedule',
                                      'outbox.origin'];
  this oid;
BEGIN
  SELECT t.database_oid INTO this FROM outbox.this_database() t;
  IF current_setting('track_counts') = 'off'
     OR EXISTS (SELECT FROM unnest(judged) AS t WHERE pg_stat_get_xact_tuples_deleted(t) > 0)
     OR EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY (judged)
                   AND mode = 'AccessExclusiveLock') -- as TRUNCATE has
     OR outbox.waits(new_tasks)
        AND NOT EXISTS (SELECT FROM outbox.origin o WHERE o.database_oid = this) THEN
    RETURN;
  END IF;
  PERFORM setval('outbox.home', this::bigint);
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.settle(bigint) FROM PUBLIC;

-- Gives the own database a mark if it has none of its own: it is new, or was made of a template.
-- Notes that all that waits belongs here. Does nothing in a copy, so everybody may call it.
CREATE OR REPLACE FUNCTION outbox.mark_origin() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  this record;
BEGIN
  SELECT * INTO this FROM outbox.this_database();
  IF EXISTS (SELECT FROM outbox.origin_state(NULL) s WHERE s.refused) THEN
    RETURN;
  END IF;
  IF outbox.this_mark() IS NULL
     OR NOT EXISTS (SELECT FROM outbox.origin o WHERE o.database_oid = this.database_oid) THEN
    LOCK TABLE outbox.origin IN SHARE ROW EXCLUSIVE MODE;
    IF outbox.this_mark() IS NOT NULL
       AND EXISTS (SELECT FROM outbox.origin o WHERE o.database_oid = this.database_oid) THEN
      RETURN; -- another session has done it
    END IF;
    DROP TYPE IF EXISTS outbox.mark;
    EXECUTE format('CREATE TYPE outbox.mark AS ENUM (%L)', gen_random_uuid());
    UPDATE outbox.origin SET mark = outbox.this_mark();
  END IF;
  IF pg_sequence_last_value('outbox.home'::regclass) IS DISTINCT FROM this.database_oid::bigint THEN
    PERFORM outbox.settle(0);
  END IF;
END
$$;

-- Notes what this database is, unless a relay of that environment is refused or the role may not
-- write it, and returns the state. The id stays, except in a database that was made of a template.
-- A relay of another environment is noted for tools, as it has no row in relay.
CREATE OR REPLACE FUNCTION outbox.note_origin(
  of_environment text,
  OUT database_id uuid, OUT database_name text, OUT environment text, OUT noted_at timestamptz,
  OUT hidden boolean, OUT own boolean, OUT refused boolean) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
  this record;
BEGIN
  IF NOT (has_table_privilege('outbox.origin', 'SELECT')
     AND has_table_privilege('outbox.origin', 'INSERT')
     AND has_table_privilege('outbox.origin', 'UPDATE')) THEN
    RETURN QUERY SELECT * FROM outbox.origin_state(of_environment);
    RETURN;
  END IF;
  SELECT * INTO this FROM outbox.this_database();
  IF NOT EXISTS (SELECT FROM outbox.origin) THEN -- new, or emptied
    LOCK TABLE outbox.origin IN SHARE ROW EXCLUSIVE MODE;
    PERFORM outbox.mark_origin();
    INSERT INTO outbox.origin
      (database_name, system_id, database_oid, table_oid, mark, server_version, environment)
    SELECT this.name, this.system_id, this.database_oid, this.table_oid, outbox.this_mark(),
           this.server_version, NULLIF(of_environment, '')
     WHERE NOT EXISTS (SELECT FROM outbox.origin);
  END IF;
  PERFORM outbox.mark_origin();
  UPDATE outbox.origin o
     SET database_id = CASE WHEN o.database_oid = this.database_oid THEN o.database_id
                            ELSE gen_random_uuid() END,
         database_name = this.name, database_oid = this.database_oid, table_oid = this.table_oid,
         mark = outbox.this_mark(),
         system_id = CASE WHEN this.system_id IS NULL AND o.server_version = this.server_version
                          THEN o.system_id ELSE this.system_id END,
         server_version = this.server_version,
         environment = COALESCE(o.environment, NULLIF(of_environment, '')),
         noted_at = now()
   WHERE NOT EXISTS (SELECT FROM outbox.origin_state(of_environment) s WHERE s.refused)
     AND (o.database_name <> this.name OR o.database_oid <> this.database_oid
      OR o.table_oid <> this.table_oid OR o.mark IS DISTINCT FROM outbox.this_mark()
      OR o.server_version <> this.server_version
      OR COALESCE(o.system_id <> this.system_id, o.system_id IS NULL AND this.system_id IS NOT NULL)
      OR o.environment IS NULL AND of_environment <> '');
  UPDATE outbox.origin o SET refused_environment = of_environment, refused_at = clock_timestamp()
   WHERE o.environment <> NULLIF(of_environment, '')
     AND COALESCE(o.refused_at NOT BETWEEN clock_timestamp() - interval '30 seconds' AND clock_timestamp(),
                  true);
  RETURN QUERY SELECT * FROM outbox.origin_state(of_environment);
END
$$;

-- Makes this database the tasks' own. What the relays of the original had begun is forgotten: their
-- leases are ready again, without the attempt that they had begun. keep_id says that the original is
-- gone, and its relays with it. A database that is no copy is left alone: all results are NULL.
CREATE OR REPLACE FUNCTION outbox.adopt(
  keep_id boolean, discard boolean, of_environment text,
  OUT leases bigint, OUT tasks bigint, OUT dead bigint, OUT schedules bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  this  record;
  noted record;
BEGIN
  LOCK TABLE outbox.origin IN SHARE ROW EXCLUSIVE MODE;
  SELECT * INTO this FROM outbox.this_database();
  SELECT * INTO noted FROM outbox.origin_state(NULL) s ORDER BY s.own, s.noted_at LIMIT 1;
  IF NOT noted.refused AND COALESCE(of_environment, '') IN ('', noted.environment) THEN
    RETURN; -- another session has adopted it meanwhile
  END IF;
  DELETE FROM outbox.origin;
  PERFORM outbox.mark_origin();
  INSERT INTO outbox.origin
    (database_id, database_name, system_id, database_oid, table_oid, mark, server_version,
     environment)
  VALUES (COALESCE(CASE WHEN keep_id THEN noted.database_id END, gen_random_uuid()),
          this.name, this.system_id, this.database_oid, this.table_oid, outbox.this_mark(),
          this.server_version,
          COALESCE(NULLIF(of_environment, ''), CASE WHEN keep_id THEN noted.environment END));
  leases := 0;
  tasks := 0;
  dead := 0;
  schedules := 0;
  IF discard THEN
    WITH gone AS (DELETE FROM outbox.task RETURNING task_type),
    counted AS (
      INSERT INTO outbox.counter_log (tasks, task_type, kind)
      SELECT count(*), task_type, 'canceled' FROM gone GROUP BY task_type)
    SELECT count(*) INTO tasks FROM gone;
    DELETE FROM outbox.dead_task;
    GET DIAGNOSTICS dead = ROW_COUNT;
    DELETE FROM outbox.schedule WHERE NOT paused; -- relays register those of their code anew, from now on
    GET DIAGNOSTICS schedules = ROW_COUNT;
    DELETE FROM outbox.cancel;
  END IF;
  IF NOT keep_id OR NOT noted.own THEN
    UPDATE outbox.task SET state = 'ready', attempt = GREATEST(attempt - 1, 0), relay_id = NULL,
           lease_token = NULL, leased_until = NULL
     WHERE state = 'leased';
    GET DIAGNOSTICS leases = ROW_COUNT;
    DELETE FROM outbox.running;
    DELETE FROM outbox.relay;
  END IF;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.adopt(boolean, boolean, text) FROM PUBLIC;

SELECT outbox.note_origin(NULL);
