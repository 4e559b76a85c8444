// Package counts has the statement that reads the counts of all task types: for outbox.Stats, and
// for the samples that relays write.
package counts

// SQL is written for the schema "outbox". It returns, for each type, the columns task_type, ready,
// scheduled, retrying, leased, waiting, dead, finished, failed, expired, age (of the oldest ready task, in
// microseconds) and due (when the first scheduled one is, in microseconds since 1970), in no order.
//
// One snapshot for all of it: what a relay moves from the log to the table of counters meanwhile is
// in one of both. Lanes that are empty are not looked at, as they may be full of dead index
// entries.
//
// set_config is never called: a query that names it gets no parallel plan. Without it the planner
// starts workers for a log whose file is larger than min_parallel_table_scan_size (8 MB). Some
// 100,000 rows are, also dead ones that wait for VACUUM.
const SQL = `SELECT c.task_type, c.ready, c.scheduled, c.retrying, c.leased, c.waiting, c.dead, c.finished,
       c.failed, c.expired, h.age, s.due
  FROM (
    SELECT task_type,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'ready'), 0)::bigint AS ready,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'scheduled'), 0)::bigint AS scheduled,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'retrying'), 0)::bigint AS retrying,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'leased'), 0)::bigint AS leased,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'waiting'), 0)::bigint AS waiting,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'dead'), 0)::bigint AS dead,
           COALESCE(sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'canceled' THEN -tasks WHEN 'failed' THEN 0
                                  WHEN 'expired' THEN -tasks ELSE arrived - tasks END), 0)::bigint AS finished,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'failed'), 0)::bigint AS failed,
           COALESCE(sum(tasks) FILTER (WHERE kind = 'expired'), 0)::bigint AS expired
      FROM (SELECT task_type, kind, tasks, arrived FROM outbox.counter
             WHERE true OR set_config('max_parallel_workers_per_gather', '0', true) IS NULL
            UNION ALL
            SELECT task_type, kind, tasks, arrived FROM outbox.counter_log) AS l
     GROUP BY task_type) AS c
  LEFT JOIN LATERAL (
    SELECT (LEAST(GREATEST(extract(epoch FROM clock_timestamp() - t.run_at), 0), 3e9) * 1000000)::bigint AS age
      FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = c.task_type AND c.ready > 0
     ORDER BY t.run_at, t.task_id LIMIT 1) AS h ON true
  LEFT JOIN LATERAL (
    SELECT (extract(epoch FROM t.run_at) * 1000000)::bigint AS due
      FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type = c.task_type AND c.scheduled + c.retrying > 0
     ORDER BY t.run_at LIMIT 1) AS s ON true`
