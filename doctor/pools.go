package doctor

// A relay holds two connections besides those of its workers, and its Leased handlers share ten, as
// relay.Config.Workers says. Its kinds of handlers are unknown. The relays of one process may share a
// pool. A pool without a limit takes as many connections as its relay needs.
const poolsSQL = `/* outbox: pools of relays */
WITH alive AS (
  SELECT relay_id::text AS id, format('%s (pid %s on %s)', relay_id, pid, host) AS name, pid, host, workers, connections,
         LEAST(workers, 10) + 2 AS leased, workers + 2 AS needed
    FROM outbox.relay WHERE alive_until > clock_timestamp() AND workers > 0 ORDER BY relay_id LIMIT 1000),
together AS (
  SELECT sum(conns) AS conns, count(*) AS processes
    FROM (SELECT max(COALESCE(connections, leased)) AS conns FROM alive GROUP BY pid, host) AS p),
server AS (
  SELECT LEAST(` + serverConnections + `, NULLIF(datconnlimit, -1)) AS most
    FROM pg_database WHERE datname = current_database())
SELECT CASE WHEN connections < leased THEN 'warning' ELSE 'info' END, id,
       format('the pool of the relay %s is limited to %s connections, and it has %s workers: ',
              name, connections, workers) ||
       CASE WHEN connections < leased THEN 'it is too small whatever its handlers are, so workers wait ' ||
         'for connections, and heartbeats with them' ELSE 'that is enough only if all its handlers are Leased' END,
       CASE WHEN connections < leased THEN '' ELSE 'if some are Tx or Batch: ' END ||
       format('db.SetMaxOpenConns(%s) or more, on a *sql.DB of the relay''s own, and one more with Schedules; ' ||
         'or fewer relay.Config.Workers', needed)
  FROM alive WHERE connections < needed
 UNION ALL
SELECT 'warning', '', format('the pools of the relays may take %s connections together, in %s processes, ' ||
         'and the server has %s in all', conns, processes, most),
       'fewer relay.Config.Workers with SetMaxOpenConns, PgBouncer in transaction mode before the server ' ||
       '(if it is there already, its default_pool_size decides), or a higher max_connections, which takes a restart'
  FROM together, server WHERE conns > most`
