package run

import (
	"context"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// claimPlan is a way to take tasks of h's type.
type claimPlan func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error)

// claimNext takes up to limit tasks from a place on.
func claimNext(from plan.Start, limit int) claimPlan {
	return func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error) {
		return s.Claim(ctx, conn, t, from, limit)
	}
}

// claimOne takes one task by its id, if it is ready and no other has it.
func claimOne(taskID int64) claimPlan {
	return func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error) {
		return s.ClaimOne(ctx, conn, t, taskID)
	}
}

// claimTx is the transaction of a claim of h's tasks.
func (u *unit) claimTx() store.ClaimTx {
	return store.ClaimTx{TaskType: u.h.Type, MaxAttempts: u.h.MaxAttempts, Group: u.h.GroupSize > 1, Timeout: u.h.Timeout,
		Idle: idleFor(u.h.Timeout), Untimed: u.untimed(), Savepoint: savepoint}
}

// idleFor is how long the transaction of a claim may stand idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + AbandonAfter + pg.Bookkeeping
}

// Found is the rows that a claim found.
func Found(rows []*store.Row) (out plan.Found) {
	for _, r := range rows {
		out.Add(plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID}, r.RunAt, len(r.Payload))
	}
	return out
}

// FoundLeases is the leased tasks that a claim found.
func FoundLeases(runs []*LeasedRun) (out plan.Found) {
	for _, x := range runs {
		at := plan.Position{Priority: x.row.Priority, Attempt: x.row.Unclaimed(), TaskID: x.row.ID}
		out.Add(at, x.row.RunAt, len(x.row.Payload))
	}
	return out
}

// unit is the work on one claim of a Tx or Batch handler, in a transaction that its owner begins
// and ends: it claims, and it writes what becomes of the tasks.
//
//	claim; SAVEPOINT; handler; constraints, session, RELEASE, probe; results
//	claim; SAVEPOINT; handler; ROLLBACK TO, RELEASE, probe; results
type unit struct {
	guardedTx
	h    *handler.Handler
	rows []*store.Row
	runs *store.Runs // in the journal; nil: there is none

	uncounted int // tasks of a group that no trigger has counted as claimed
}

// take claims, and sets the savepoint if it finds tasks. It asks for PostgreSQL's clock where
// MaxElapsed, or the span of a throttled task, counts from an earlier failure.
func (u *unit) take(c claimPlan) error {
	return u.exclusively(func(ctx context.Context, conn pg.Exclusive) error {
		claimed, err := c(ctx, u.Store, conn, u.claimTx())
		u.rows, u.xid = claimed.Rows, claimed.XID
		counts := func(r *store.Row) bool {
			_, failed := r.FirstFailure()
			return failed && (u.h.MaxElapsed > 0 || r.Throttled())
		}
		if err != nil || !slices.ContainsFunc(u.rows, counts) {
			return err
		}
		return u.NoteTime(ctx, conn, u.rows)
	})
}

// allow makes the transaction wait for a handler with another timeout than the registered one,
// which the claim has set it for. By a query: each value would be another SET for
// pg_stat_statements.
func (u *unit) allow(timeout time.Duration) error {
	if timeout == u.h.Timeout {
		return nil
	}
	return u.exec("/* outbox: allow a task's own timeout */ SELECT set_config('idle_in_transaction_session_timeout', '" + pg.Millis(idleFor(timeout)) + "', true), " +
		"set_config('statement_timeout', '" + pg.Millis(timeout) + "', true)")
}

// tasks are what the handler gets.
func (u *unit) tasks() []*store.Task {
	block := make([]store.Task, len(u.rows))
	tasks := make([]*store.Task, len(u.rows))
	for i, r := range u.rows {
		tasks[i] = &block[i]
		r.Fill(tasks[i], u.Identity, r.Begun())
	}
	return tasks
}

// Of one task; of none (0) where their rows in the journal are deleted before.
const endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`

// keep keeps what the handler did, and writes what becomes of its tasks: without verdicts they are
// done. Not released is an error of the handler's work or of its transaction, see isBroken; released
// is one of the relay's own statements.
func (u *unit) keep(verdicts []verdict) (released bool, err error) {
	var done, history []*store.Row
	var canceledTypes []string
	if verdicts == nil {
		done, history = u.rows, u.rows
	}
	for i, v := range verdicts {
		switch r := u.rows[i]; {
		case v.outcome == Canceled:
			done, canceledTypes = append(done, r), append(canceledTypes, u.h.Type)
		case v.done:
			r.Discarded = v.change.Err
			done, history = append(done, r), append(history, r)
		}
	}
	after, one := "", int64(0)
	switch {
	case u.runs == nil:
		after = "; " + u.ForgetTasks(done)
	case len(u.runs.IDs) > 1:
		after = "; " + u.runs.Forget(u.Store, done)
	case len(done) == 1:
		one = done[0].ID
	}
	if u.uncounted > 0 {
		after += "; " + u.CountClaimed(u.h.Type, u.uncounted)
	}
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		var err error
		if released, err = u.release(ctx, c, u.h.Keep, history, after, u.SQL(endRunSQL), one); err != nil {
			return err
		}
		if err := writeVerdicts(ctx, u.Store, c, u.rows, verdicts); err != nil {
			return err
		}
		return u.Count(ctx, c, "canceled", canceledTypes)
	})
	return released, err
}

// reject undoes what the handler did, and writes what becomes of its tasks. Not undone is an error
// of the transaction.
func (u *unit) reject(verdicts []verdict) (undone bool, err error) {
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := u.undo(ctx, c); err != nil {
			return err
		}
		undone = true
		if u.runs != nil && len(u.runs.IDs) > 1 { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, u.runs.Forget(u.Store, nil)); err != nil {
				return err
			}
		}
		if err := writeVerdicts(ctx, u.Store, c, u.rows, verdicts); err != nil || u.conn == nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	return undone, err
}
