package dashboardtest

import (
	"database/sql"
	"testing"
)

// Bury writes n dead letters of a type, with ids from first on.
func Bury(t testing.TB, db *sql.DB, taskType, reason, text string, first, n int) {
	t.Helper()
	execute(t, db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error)
		SELECT i, now() - interval '30 minutes', now() - interval '2 hours', now() - (i - $4::int) * interval '67 seconds' - interval '9 seconds', now() - (i - $4::int) * interval '67 seconds' - interval '5 seconds',
		       0, 10, 10, $2, $1, jsonb_build_object('user_id', i, 'email', 'nobody@exmaple.com', 'locale', 'de'), '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}', $3
		  FROM generate_series($4::int, $4::int + $5::int - 1) i`, taskType, reason, text, first, n)
}
