-- +goose Up
-- Exact counts of the tasks by type and state, at the same cost with ten tasks and with ten
-- million.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00020_counts.sql

-- How many tasks there are by type and kind: a state of outbox.task, or dead. The kinds failed
-- (runs) and canceled (tasks taken back) are totals. What holds is this table plus
-- outbox.counter_log.
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
COMMENT ON COLUMN outbox.counter.arrived
  IS 'dead: ever died; the states together: ever enqueued, so that finished = arrived - tasks, '
     'less what died and was canceled';

-- Changes that are not in outbox.counter yet. Transactions only add rows, so none waits for another
-- one; a relay moves them there every few seconds.
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
-- Beside a publication PostgreSQL deletes no row that it cannot name to a subscriber. A primary key
-- would do, but an index would cost each change of a task.
ALTER TABLE outbox.counter_log REPLICA IDENTITY FULL;

-- The counts of a type, once a minute, for a day.
CREATE TABLE IF NOT EXISTS outbox.sample (
  at           timestamptz NOT NULL,
  ready        bigint      NOT NULL,
  scheduled    bigint      NOT NULL,
  leased       bigint      NOT NULL,
  waiting      bigint      NOT NULL,
  dead         bigint      NOT NULL,
  finished     bigint      NOT NULL,
  failed       bigint      NOT NULL,
  oldest_ready bigint      NOT NULL,
  task_type    text        NOT NULL,
  PRIMARY KEY (task_type, at)
) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN outbox.sample.finished     IS 'since the counters began, as failed';
COMMENT ON COLUMN outbox.sample.oldest_ready
  IS 'microseconds for which the next task has been due; 0: none is ready';
CREATE INDEX IF NOT EXISTS sample_at ON outbox.sample (at);

-- The functions of the triggers, which come with their tables in 00022.

-- Counts, checks and wakes, after an INSERT of tasks. It is one function, as a second one costs a
-- single insert too much. The first three rows are counted one by one, since an aggregate costs a
-- single row as much as all the rest. The others are counted in sums; the scan of a transition
-- table has one order. A task that a relay writes back has been attempted; all others are new. What
-- is selected has the types of the columns: casts above the LIMIT would be a node of the plan. Rows
-- that meet the conditions are legal by check_task, which returns true or fails. Of the first
-- three, the conditions let pass the ordinary ones only, as each part of a condition costs in every
-- statement. NOTIFY takes a lock that serialises commits, so it is sent only while a relay asks for
-- it. The sequence is 0 while none does, which is known without the clock.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT 1::bigint, num_nulls(attempted_at)::bigint, task_type, state FROM added
   WHERE state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, timeout_ms,
                      attempted_at) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity'
       AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
      OR outbox.check_task(task_id)
   LIMIT 3;
  GET DIAGNOSTICS n = ROW_COUNT;
  IF n = 3 THEN
    INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
    SELECT count(*), count(*) - count(attempted_at), task_type, state
      FROM (SELECT * FROM added OFFSET 3) AS rest
     WHERE (state IN ('ready', 'scheduled') OR state = 'waiting' AND ordering_key IS NOT NULL)
       AND attempt >= 0
       AND num_nonnulls(lease_token, leased_until) = 0
       AND (max_attempts > 0) IS NOT FALSE AND (timeout_ms > 0) IS NOT FALSE
         AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
       AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
       AND least(run_at, created_at, attempted_at) > '-infinity'
       AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
        OR outbox.check_task(task_id)
     GROUP BY task_type, state;
  END IF;
  IF pg_sequence_last_value('outbox.wake'::regclass) > 0 THEN
    IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
      PERFORM pg_notify(TG_TABLE_SCHEMA, '');
    END IF;
  END IF;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Counts after a DELETE of tasks, and requests a new head for each ordering key whose head is gone.
-- A trigger for each row, whose WHEN is prepared anew for every statement, would cost a claim of
-- one task more.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_removed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n bigint;
BEGIN
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

-- Counts and checks after an UPDATE of tasks.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT sum(n), sum(n), task_type, state
    FROM (SELECT 1 AS n, task_type, state FROM added
           WHERE (state IN ('ready', 'scheduled') AND num_nonnulls(lease_token, leased_until) = 0
               OR state = 'leased' AND num_nulls(lease_token, relay_id) = 0) AND attempt >= 0
             AND (max_attempts > 0) IS NOT FALSE AND (jsonb_typeof(headers) = 'object') IS NOT FALSE
             AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
             AND least(run_at, created_at, attempted_at) > '-infinity'
             AND greatest(run_at, created_at, attempted_at) < '10000-01-01 00:00:00+00'
              OR outbox.check_task(task_id)
          UNION ALL SELECT -1, task_type, state FROM removed) AS change
   GROUP BY task_type, state HAVING sum(n) <> 0;
  RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Counts new dead letters.
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

-- Counts dead letters that are gone.
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

-- Counts after a TRUNCATE. What it takes away counts as never enqueued: it did not finish. It sees
-- all counts, as TRUNCATE waits for everybody who writes; above READ COMMITTED it is as inexact as
-- TRUNCATE itself.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.task_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT -sum(tasks), CASE kind WHEN 'dead' THEN 0 ELSE -sum(tasks) END, task_type, kind
    FROM (SELECT tasks, task_type, kind FROM outbox.counter
          UNION ALL SELECT tasks, task_type, kind FROM outbox.counter_log) AS c
   WHERE CASE TG_TABLE_NAME
           WHEN 'task' THEN kind NOT IN ('dead', 'failed', 'canceled')
           ELSE kind = 'dead'
         END
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

INSERT INTO outbox.migration (version) VALUES (20) ON CONFLICT DO NOTHING;
