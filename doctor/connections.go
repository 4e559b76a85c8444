package doctor

import (
	"context"
	"fmt"
)

// The connections that the server has for roles other than superusers and, since PostgreSQL 16,
// members of pg_use_reserved_connections.
const serverConnections = `current_setting('max_connections')::bigint
       - current_setting('superuser_reserved_connections')::bigint
       - COALESCE(current_setting('reserved_connections', true), '0')::bigint`

// Roles without pg_read_all_stats do not see the type of other backends.
const connectionsSQL = `/* outbox: connections */
WITH client AS (
  SELECT state, COALESCE(NULLIF(application_name, ''), usename::text, '') AS name FROM pg_stat_activity
   WHERE datid IS NOT NULL AND COALESCE(backend_type, 'client backend') = 'client backend')
SELECT ` + serverConnections + `,
       count(*), count(*) FILTER (WHERE state = 'active'), count(*) FILTER (WHERE state = 'idle'),
       count(*) FILTER (WHERE state LIKE 'idle in transaction%'),
       (SELECT COALESCE(string_agg(format('%s by %s', n, name), ', ' ORDER BY n DESC, name), '')
          FROM (SELECT name, count(*) AS n FROM client GROUP BY name ORDER BY 2 DESC, 1 LIMIT 3) AS most)
  FROM client`

func checkConnections(ctx context.Context, v *visit) error {
	var limit, used, active, idle, inTransaction int64
	var most string
	if err := v.row(ctx, connectionsSQL, nil, &limit, &used, &active, &idle, &inTransaction, &most); err != nil {
		return err
	}
	severity, do := fullness(used, limit), ""
	if severity > OK {
		do = "make pools smaller (SetMaxOpenConns), put PgBouncer in transaction mode before the server, " +
			"or raise max_connections, which takes a restart"
	}
	v.add("connections", severity, "", fmt.Sprintf("%d of %d connections are in use: "+
		"%d active, %d idle, %d idle in a transaction; the most %s", used, limit, active, idle, inTransaction, most),
		do)
	return nil
}

// fullness judges the use of a limited number of connections.
func fullness(used, limit int64) Severity { return grade(used*100, limit*85, limit*95) }
