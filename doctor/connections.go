package doctor

import (
	"context"
	"database/sql"
	"fmt"
)

// The connections that the server has for roles other than superusers and, since PostgreSQL 16,
// members of pg_use_reserved_connections.
const serverConnections = `current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
       - COALESCE(current_setting('reserved_connections', true), '0')::bigint`

// Roles without pg_read_all_stats do not see the type of other backends.
const connectionsSQL = `/* outbox: connections */
WITH client AS (
  SELECT datname, state, COALESCE(NULLIF(application_name, ''), usename::text, '') AS name FROM pg_stat_activity
   WHERE datid IS NOT NULL AND COALESCE(backend_type, 'client backend') = 'client backend')
SELECT ` + serverConnections + `,
       count(*), count(*) FILTER (WHERE state = 'active'), count(*) FILTER (WHERE state = 'idle'),
       count(*) FILTER (WHERE state LIKE 'idle in transaction%'), count(*) FILTER (WHERE datname = current_database()),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()), current_database(),
       (SELECT COALESCE(string_agg(format('%s by %s', n, name), ', ' ORDER BY n DESC, name), '')
          FROM (SELECT name, count(*) AS n FROM client GROUP BY name ORDER BY 2 DESC, 1 LIMIT 3) AS most)
  FROM client`

const roleConnectionsSQL = `/* outbox: roles with a limit of connections */
SELECT r.rolname::text, count(*), r.rolconnlimit FROM pg_roles r JOIN pg_stat_activity a ON a.usesysid = r.oid
 WHERE r.rolconnlimit >= 0 AND NOT r.rolsuper
   AND EXISTS (SELECT 1 FROM pg_stat_activity h WHERE h.usesysid = r.oid AND h.datname = current_database())
 GROUP BY r.rolname, r.rolconnlimit ORDER BY 2 DESC LIMIT 100`

func checkConnections(ctx context.Context, v *visit) error {
	var limit, used, active, idle, inTransaction, here int64
	var ofDatabase sql.NullInt64
	var database, most string
	err := v.row(ctx, connectionsSQL, nil, &limit, &used, &active, &idle, &inTransaction, &here, &ofDatabase, &database, &most)
	if err != nil {
		return err
	}
	do := ""
	if fullness(used, limit) > OK {
		do = "make pools smaller (SetMaxOpenConns), put PgBouncer in transaction mode before the server, " +
			"or raise max_connections, which takes a restart"
	}
	v.add("connections", fullness(used, limit), "", fmt.Sprintf("%d of %d connections are in use: "+
		"%d active, %d idle, %d idle in a transaction; the most %s", used, limit, active, idle, inTransaction, most), do)
	if of := ofDatabase.Int64; of >= 0 && fullness(here, of) > OK {
		v.add("connections", fullness(here, of), database,
			fmt.Sprintf("%d of %d connections to the database %s are in use", here, of, database),
			"make pools smaller, or ALTER DATABASE "+quote(database)+" CONNECTION LIMIT with more")
	}
	var role string
	return v.each(ctx, roleConnectionsSQL, nil, []any{&role, &used, &limit}, func() {
		if severity := fullness(used, limit); severity > OK {
			v.add("connections", severity, role,
				fmt.Sprintf("%d of %d connections of the role %s are in use", used, limit, role),
				"make its pools smaller, or ALTER ROLE "+quote(role)+" CONNECTION LIMIT with more")
		}
	})
}

// fullness judges the use of a limited number of connections.
func fullness(used, limit int64) Severity { return grade(used*100, limit*85, limit*95) }
