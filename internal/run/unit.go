package run

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// unit is the work on one claim of a Tx or Batch handler, in a transaction that its owner begins and
// ends: it claims, and it writes what becomes of the tasks.
//
//	claim; SAVEPOINT; handler; constraints, session, RELEASE, probe; results
//	claim; SAVEPOINT; handler; ROLLBACK TO, RELEASE, probe; results
type unit struct {
	guardedTx
	h    *handlers.Handler
	rows []*store.Row
	rowRoom
	runs *store.Runs // in the journal; nil: there is none
}

// take claims, and sets the savepoint if it finds tasks.
func (u *unit) take(c claimPlan) error {
	return u.exclusively(func(ctx context.Context, conn pg.Exclusive) error {
		untimed := u.untimed()
		before, after := "", ""
		var block []store.Row
		for i, more := 0, true; more; i++ {
			var p claimPart
			if p, more = c.part(u.h, i, len(u.rows)); p.limit == 0 {
				break
			}
			switch {
			case p.settled:
				after = untimed + "SAVEPOINT " + u.savepoint
			case !more:
				after = u.savepointStatements(u.h.Timeout)
			}
			if i == 0 && !p.settled {
				before = untimed + claimSettings(u.h)
			}
			found := len(u.rows)
			err := conn.Together(ctx, before, u.SQL(p.query), p.args, after, func(values []driver.Value) (err error) {
				if values[0] == nil {
					return nil
				}
				if len(block) == 0 {
					block = u.rowsFor(p.limit)
				}
				r := &block[0]
				block = block[1:]
				r.TaskType, r.Max = u.h.Type, u.h.MaxAttempts
				u.rows = append(u.rows, r)
				u.xid, err = r.FromText(pg.Text(values[0]))
				return err
			})
			if err = errors.Join(err, store.TooMany(len(u.rows)-found, p.limit)); err != nil {
				return err
			}
			before = ""
		}
		store.InOrder(u.rows)
		if len(u.rows) == 0 || after != "" {
			return nil
		}
		_, err := conn.ExecContext(ctx, u.savepointStatements(u.h.Timeout))
		return err
	})
}

func (u *unit) savepointStatements(timeout time.Duration) string {
	return "SAVEPOINT " + u.savepoint + "; SET LOCAL statement_timeout = " + pg.Millis(timeout)
}

// allow makes the transaction wait for a handler with another timeout than the registered one,
// which the claim has set it for.
func (u *unit) allow(timeout time.Duration) error {
	if timeout == u.h.Timeout {
		return nil
	}
	return u.exec("SET LOCAL idle_in_transaction_session_timeout = " + pg.Millis(idleFor(timeout)) + "; SET LOCAL statement_timeout = " + pg.Millis(timeout))
}

// tasks are what the handler gets.
func (u *unit) tasks() []*store.Task {
	block := make([]store.Task, len(u.rows))
	tasks := make([]*store.Task, len(u.rows))
	for i, r := range u.rows {
		tasks[i] = &block[i]
		r.Fill(tasks[i], r.Begun()+len(r.Undecided))
	}
	return tasks
}

// Of one task; of none (0) where their rows in the journal are deleted before.
const endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`

// keep keeps what the handler did, and writes what becomes of its tasks: without verdicts they are
// done. Not released is an error of the handler's work or of its transaction, see isBroken.
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
	case u.runs.Batch():
		after = "; " + u.runs.Forget(u.Store, done)
	case len(done) == 1:
		one = done[0].ID
	}
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := u.release(ctx, c, u.KeepTasks(u.h.Keep, history), after, u.SQL(endRunSQL), one); err != nil {
			return err
		}
		released = true
		if err := u.write(ctx, c, verdicts); err != nil {
			return err
		}
		return u.Count(ctx, c, "canceled", canceledTypes)
	})
	return released, err
}

// reject undoes what the handler did, and writes what becomes of its tasks. Not undone is an error of
// the transaction.
func (u *unit) reject(verdicts []verdict) (undone bool, err error) {
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := u.undo(ctx, c); err != nil {
			return err
		}
		undone = true
		if u.runs != nil && u.runs.Batch() { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, u.runs.Forget(u.Store, nil)); err != nil {
				return err
			}
		}
		if err := u.write(ctx, c, verdicts); err != nil || u.conn == nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	return undone, err
}

// write writes what becomes of the tasks that are not done.
func (u *unit) write(ctx context.Context, tx store.Execer, verdicts []verdict) error {
	for i, v := range verdicts {
		if v.done {
			continue
		}
		write := u.WriteBack
		if v.change.Reason != "" {
			write = u.WriteDead
		}
		if err := write(ctx, tx, u.rows[i], v.change); err != nil {
			return err
		}
	}
	return nil
}
