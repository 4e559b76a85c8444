-- +goose Up
-- Exact counts of the tasks by type and state, at the same cost with ten tasks and with ten million; and what is due of maintenance.
-- Enqueueing waits while this counts what is there already: about a second for ten million tasks.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00002_counts.sql

-- How many tasks there are by type and kind: a state of outbox.task, or dead. The kinds failed (runs) and canceled
-- (tasks taken back) are totals. What holds is this table plus outbox.counter_log.
CREATE TABLE IF NOT EXISTS outbox.counter (
  task_type text   NOT NULL,
  kind      text   NOT NULL,
  tasks     bigint NOT NULL,
  arrived   bigint NOT NULL,
  PRIMARY KEY (task_type, kind)
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.counter.tasks   IS 'now; failed and canceled: ever';
COMMENT ON COLUMN outbox.counter.arrived IS 'dead: ever died; the states together: ever enqueued, so that finished = arrived - tasks, less what died and was canceled';

-- Changes that are not in outbox.counter yet. Transactions only add rows, so none waits for another one; a relay moves
-- them there every few seconds.
CREATE TABLE IF NOT EXISTS outbox.counter_log (
  tasks     bigint NOT NULL,
  arrived   bigint NOT NULL DEFAULT 0,
  task_type text   NOT NULL,
  kind      text   NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
  autovacuum_vacuum_cost_delay = 0
);

-- When each step of maintenance is due. The relay that gets its row runs it.
CREATE TABLE IF NOT EXISTS outbox.maintenance (
  step   text        PRIMARY KEY,
  due_at timestamptz NOT NULL DEFAULT now()
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
  autovacuum_vacuum_cost_delay = 0
);

-- Counts, and wakes: one function for both, as a second one costs a single insert too much. The first three rows are counted
-- one by one, since an aggregate costs a single one as much as all the rest, and the others in sums (the scan of a transition table has one order). A task that a relay writes back has been
-- attempted; all others are new. NOTIFY takes a lock that serialises commits, so it is sent only while a relay asks for it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1, CASE WHEN attempted_at IS NULL THEN 1 ELSE 0 END, task_type, state FROM added LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, state FROM (SELECT attempted_at, task_type, state FROM added OFFSET 3) AS rest
     GROUP BY task_type, state;
  END IF;
  IF (SELECT last_value FROM outbox.wake) > extract(epoch FROM clock_timestamp()) THEN
    PERFORM pg_notify(TG_TABLE_SCHEMA, '');
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT -1, task_type, state FROM removed LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, task_type, kind)
    SELECT -count(*), task_type, state FROM (SELECT task_type, state FROM removed OFFSET 3) AS rest GROUP BY task_type, state;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT sum(n), sum(n), task_type, state
    FROM (SELECT 1 AS n, task_type, state FROM added UNION ALL SELECT -1, task_type, state FROM removed) AS change
   GROUP BY task_type, state HAVING sum(n) <> 0;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.dead_task_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT count(*), count(*), task_type, 'dead' FROM added GROUP BY task_type;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.dead_task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, task_type, kind)
  SELECT -count(*), task_type, 'dead' FROM removed GROUP BY task_type;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What a TRUNCATE takes away has never been enqueued: it did not finish. It sees all counts, as TRUNCATE waits for
-- everybody who writes; above READ COMMITTED it is as inexact as TRUNCATE itself.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT -sum(tasks), CASE kind WHEN 'dead' THEN 0 ELSE -sum(tasks) END, task_type, kind
    FROM (SELECT tasks, task_type, kind FROM outbox.counter UNION ALL SELECT tasks, task_type, kind FROM outbox.counter_log) AS c
   WHERE CASE TG_TABLE_NAME WHEN 'task' THEN kind NOT IN ('dead', 'failed', 'canceled') ELSE kind = 'dead' END
   GROUP BY task_type, kind HAVING sum(tasks) <> 0;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION outbox.task_wake() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_removed() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_changed() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.dead_task_added() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.dead_task_removed() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION outbox.task_truncated() FROM PUBLIC;

-- From here on nobody writes to the two tables until the commit.
LOCK TABLE outbox.task, outbox.dead_task IN SHARE ROW EXCLUSIVE MODE;

CREATE OR REPLACE TRIGGER task_wake AFTER INSERT ON outbox.task REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_wake();
CREATE OR REPLACE TRIGGER task_removed AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_removed();
CREATE OR REPLACE TRIGGER task_changed AFTER UPDATE ON outbox.task REFERENCING OLD TABLE AS removed NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_changed();
CREATE OR REPLACE TRIGGER task_truncated AFTER TRUNCATE ON outbox.task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();
CREATE OR REPLACE TRIGGER dead_task_added AFTER INSERT ON outbox.dead_task REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_added();
CREATE OR REPLACE TRIGGER dead_task_removed AFTER DELETE ON outbox.dead_task REFERENCING OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.dead_task_removed();
CREATE OR REPLACE TRIGGER dead_task_truncated AFTER TRUNCATE ON outbox.dead_task
  FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_truncated();

-- What is there and not counted yet: everything, or nothing when this file is applied again.
INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
SELECT n, CASE kind WHEN 'dead' THEN 0 ELSE n END, task_type, kind
  FROM (SELECT sum(n) AS n, task_type, kind
          FROM (SELECT count(*) AS n, task_type, state AS kind FROM outbox.task GROUP BY task_type, state
                UNION ALL SELECT count(*), task_type, 'dead' FROM outbox.dead_task GROUP BY task_type
                UNION ALL SELECT -tasks, task_type, kind FROM outbox.counter WHERE kind NOT IN ('failed', 'canceled')
                UNION ALL SELECT -tasks, task_type, kind FROM outbox.counter_log WHERE kind NOT IN ('failed', 'canceled')) AS c
         GROUP BY task_type, kind) AS missing
 WHERE n <> 0;

INSERT INTO outbox.migration (version) VALUES (2) ON CONFLICT DO NOTHING;
