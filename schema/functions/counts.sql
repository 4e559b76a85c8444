-- The counts of dead letters, and of what TRUNCATE takes away.

-- Counts new dead letters, and those that are gone.
CREATE OR REPLACE FUNCTION outbox.dead_task_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END,
         CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE 0 END, task_type, 'dead'
    FROM changed GROUP BY task_type;
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.dead_task_changed() FROM PUBLIC;

-- Counts after a TRUNCATE. Its rows count as never enqueued: they did not finish. It sees all counts,
-- as TRUNCATE waits for all writers; above READ COMMITTED it is as inexact as TRUNCATE itself.
CREATE OR REPLACE FUNCTION outbox.task_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
  SELECT -sum(tasks), CASE kind WHEN 'dead' THEN 0 ELSE -sum(tasks) END, task_type, kind
    FROM (SELECT tasks, task_type, kind FROM outbox.counter
          UNION ALL SELECT tasks, task_type, kind FROM outbox.counter_log) AS c
   WHERE CASE TG_TABLE_NAME
           WHEN 'task' THEN kind NOT IN ('dead', 'failed', 'canceled', 'expired')
           ELSE kind = 'dead'
         END
   GROUP BY task_type, kind HAVING sum(tasks) <> 0;
  RETURN NULL;
END
$$;
REVOKE EXECUTE ON FUNCTION outbox.task_truncated() FROM PUBLIC;
