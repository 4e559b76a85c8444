-- +goose Up
-- Scheduled tasks that were attempted are counted apart, as retrying. The lock keeps writers out until
-- the functions are there that count so.
LOCK TABLE outbox.task IN SHARE MODE;
CREATE INDEX IF NOT EXISTS task_retrying ON outbox.task (task_type, run_at)
  WHERE state = 'scheduled' AND attempt > 0;
ALTER TABLE outbox.sample ADD COLUMN IF NOT EXISTS retrying bigint NOT NULL DEFAULT 0;

INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind)
SELECT sign * sum(n), sign * sum(n), task_type, kind
  FROM (SELECT task_type, count(*) AS n FROM outbox.task WHERE state = 'scheduled' AND attempt > 0
         GROUP BY task_type
         UNION ALL SELECT task_type, -tasks FROM outbox.counter WHERE kind = 'retrying'
         UNION ALL SELECT task_type, -tasks FROM outbox.counter_log WHERE kind = 'retrying') AS uncounted
 CROSS JOIN (VALUES (1, 'retrying'), (-1, 'scheduled')) AS moved (sign, kind)
 GROUP BY task_type, sign, kind HAVING sum(n) <> 0;

INSERT INTO outbox.migration (version, oldest_version) VALUES (4, 1) ON CONFLICT DO NOTHING;
