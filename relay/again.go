package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

const leaseAgainSQL = `/* outbox: run a leased task again */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $3::bigint * interval '1 microsecond',
       iterations = LEAST(iterations, 2147483646) + 1, attempt = 0, last_error = NULL, payload = COALESCE($4::jsonb, payload),
       relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE task_id = $1 AND lease_token = $2::uuid`

// leaseAgain begins the next iteration of a leased task, if its lease is held. An empty payload keeps the task's own.
func (s *store) leaseAgain(ctx context.Context, tx *sql.Tx, taskID int64, token string, wait time.Duration, payload string) (sql.Result, error) {
	return tx.ExecContext(ctx, s.sql(leaseAgainSQL), taskID, token, wait.Microseconds(), sql.NullString{String: payload, Valid: payload != ""})
}

// resultAgain is what the result of Complete's function asks for: RunAgain, or nil to end the task; other results are errors.
func resultAgain(h *handlers.Handler, taskID int64, err error) (*handlers.Result, error) {
	if err = h.CheckAgain(taskID, err); !runsAgain(err) {
		return nil, err
	}
	return handlers.ResultOf(err), nil
}

func runsAgain(err error) bool {
	return err != nil && handlers.ResultOf(err).Action == handlers.ActionRunAgain
}

// allAgain is the result of each task after RunAgain for all.
func allAgain(rows []*row, again *handlers.Result) handlers.BatchError {
	all := make(handlers.BatchError, len(rows))
	for _, r := range rows {
		all[r.id] = again
	}
	return all
}
