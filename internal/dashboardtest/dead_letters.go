package dashboardtest

import (
	"database/sql"
	"strconv"
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

// SlowDown makes each read of the error of a dead letter whose id meets the condition take so many
// seconds.
func SlowDown(t testing.TB, db *sql.DB, condition string, seconds float64) {
	t.Helper()
	execute(t, db, `ALTER TABLE outbox.dead_task RENAME TO letters`)
	execute(t, db, `CREATE FUNCTION outbox.slow(id bigint, error text) RETURNS text STABLE LANGUAGE plpgsql AS
		$$ BEGIN IF `+condition+` THEN PERFORM pg_sleep(`+strconv.FormatFloat(seconds, 'f', -1, 64)+`); END IF; RETURN error; END $$`)
	execute(t, db, `DO $$ BEGIN
		EXECUTE format('CREATE VIEW outbox.dead_task AS SELECT %s FROM outbox.letters', (
			SELECT string_agg(CASE attname WHEN 'last_error' THEN 'outbox.slow(task_id, last_error) AS last_error' ELSE quote_ident(attname) END, ', ')
			  FROM pg_attribute WHERE attrelid = 'outbox.letters'::regclass AND attnum > 0 AND NOT attisdropped));
		END $$`)
}
