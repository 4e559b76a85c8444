package store

import (
	"context"
	"database/sql"
	"time"
)

const LeaseAgainSQL = `/* outbox: run a leased task again */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $3::bigint * interval '1 microsecond',
       iterations = LEAST(iterations, 2147483646) + 1, attempt = 0, last_error = NULL, payload = COALESCE($4::jsonb, payload),
       relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE task_id = $1 AND lease_token = $2::uuid`

// LeaseAgain begins the next iteration of a leased task, if its lease is held. An empty payload
// keeps the task's own.
func (s *Store) LeaseAgain(ctx context.Context, tx *sql.Tx, taskID int64, token string, wait time.Duration, payload string) (sql.Result, error) {
	return tx.ExecContext(ctx, s.SQL(LeaseAgainSQL), taskID, token, wait.Microseconds(), sql.NullString{String: payload, Valid: payload != ""})
}
