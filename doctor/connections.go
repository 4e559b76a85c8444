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
  FROM total
 UNION ALL
SELECT CASE WHEN used >= most * 0.95 THEN 'critical' ELSE 'warning' END, name,
       format('%s of %s connections %s are in use', used, most, whose),
       format('make pools smaller, or ALTER %s CONNECTION LIMIT with more', what)
  FROM (SELECT d.datname::text AS name, 'to the database ' || d.datname AS whose,
               format('DATABASE %I', d.datname) AS what,
               d.datconnlimit AS most, (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid) AS used
          FROM pg_database d WHERE d.datname = current_database()
         UNION ALL
        SELECT r.rolname, 'of the role ' || r.rolname, format('ROLE %I', r.rolname), r.rolconnlimit, count(*)
          FROM pg_roles r JOIN pg_stat_activity a ON a.usesysid = r.oid WHERE NOT r.rolsuper
         GROUP BY r.rolname, r.rolconnlimit
        HAVING count(*) FILTER (WHERE a.datname = current_database()) > 0) AS limited
 WHERE most >= 0 AND used >= most * 0.85`
