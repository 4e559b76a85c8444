package doctor

// The connections that the server has for roles other than superusers and, since PostgreSQL 16,
// members of pg_use_reserved_connections.
const serverConnections = `current_setting('max_connections')::bigint
       - current_setting('superuser_reserved_connections')::bigint
       - COALESCE(current_setting('reserved_connections', true), '0')::bigint`

// Roles without pg_read_all_stats do not see the type of other backends.
const connectionsSQL = `/* outbox: connections */
WITH client AS (
  SELECT state, COALESCE(NULLIF(application_name, ''), usename::text, '') AS name FROM pg_stat_activity
   WHERE datid IS NOT NULL AND COALESCE(backend_type, 'client backend') = 'client backend'),
total AS (
  SELECT ` + serverConnections + ` AS most, count(*) AS used, count(*) FILTER (WHERE state = 'active') AS active,
         count(*) FILTER (WHERE state = 'idle') AS idle,
         count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS held,
         (SELECT string_agg(format('%s by %s', n, name), ', ' ORDER BY n DESC, name)
            FROM (SELECT name, count(*) AS n FROM client GROUP BY name ORDER BY 2 DESC, 1 LIMIT 3) AS most) AS users
    FROM client)
SELECT CASE WHEN used >= most * 0.95 THEN 'critical' WHEN used >= most * 0.85 THEN 'warning' ELSE 'ok' END, '',
       format('%s of %s connections are in use: %s active, %s idle, %s idle in a transaction; the most %s',
              used, most, active, idle, held, users),
       CASE WHEN used >= most * 0.85 THEN 'make pools smaller (SetMaxOpenConns), put PgBouncer in transaction mode ' ||
            'before the server, or raise max_connections, which takes a restart' ELSE '' END
  FROM total`
