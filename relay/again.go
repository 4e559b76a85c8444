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
func (r *Relay) leaseAgain(ctx context.Context, tx *sql.Tx, taskID int64, token string, wait time.Duration, payload string) (sql.Result, error) {
	return tx.ExecContext(ctx, r.sql(leaseAgainSQL), taskID, token, wait.Microseconds(), sql.NullString{String: payload, Valid: payload != ""})
}

// endLease ends a lease whose handler has succeeded, or begins its task's next iteration.
func (r *Relay) endLease(ctx context.Context, tx *sql.Tx, h *handlers.Handler, taskID int64, token string, again *handlers.Result) (sql.Result, error) {
	if again != nil {
		return r.leaseAgain(ctx, tx, taskID, token, again.Wait, string(again.Payload))
	}
	query, args := completeSQL, []any{taskID, token}
	if h.Keep > 0 {
		var done doneLeases
		done.add(&transition{row: &row{id: taskID}, token: token, keep: h.Keep})
		query, args = done.statement()
	}
	return tx.ExecContext(ctx, r.sql(query), args...)
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

// insertAgain begins the next iteration of tasks whose handler committed their claim itself, against the rules, and
// then asked for it.
func (a *attempt) insertAgain(ctx context.Context) error {
	if a.again == nil {
		a.watch.all(Done)
		return nil
	}
	err := a.r.conns.inTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		for _, r := range a.rows {
			next := r.after(a.h, a.again, r.begun())
			next.late = true
			if err := a.r.writeBack(ctx, tx, r, next); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		a.r.log.Error("outbox: the next iterations could not be written; the tasks are only in this record", "task_type", a.h.Type, "tasks", ids(a.rows), "error", safeText(err))
		return err
	}
	a.watch.all(RunAgain)
	a.r.due(a.again.Wait)
	return nil
}
