package relay

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// ended asks how the claim's transaction ended, as the handler ended it.
func (a *attempt) ended(ctx context.Context, handlerErr error) error {
	status, err := a.TransactionStatus(a.xid)
	switch {
	case err != nil:
		a.r.journal.MarkLost(a.runs)
		return err
	case status == "committed" && handlerErr == nil:
		a.r.log.Error("outbox: the handler committed the transaction of its claim; it is the relay's to commit", "task_type", a.h.Type, "tasks", store.IDs(a.rows))
		a.r.journal.ForgetRuns(a.runs)
		if a.again == nil {
			a.watch.all(Done)
			return nil
		}
		if err = a.r.insertAgain(ctx, a.h, a.rows, a.again); err == nil {
			a.watch.all(RunAgain)
		}
		return err
	case status == "committed":
		a.r.log.Error("outbox: the handler committed the transaction of its claim and then failed; its tasks are dead letters", "task_type", a.h.Type, "tasks", store.IDs(a.rows))
		changes, err := a.r.buryCommitted(ctx, a.rows, handlerErr)
		for i, c := range changes {
			a.watch.change(a.rows[i].ID, c)
		}
		if err == nil {
			a.watch.confirm()
		}
		return err
	}
	if handlerErr == nil {
		handlerErr = errRolledBack
	}
	return a.outOfBand(handlerErr, nil)
}

// outOfBand records a failed attempt in a transaction of its own. cause, if any, is why it had to.
func (a *attempt) outOfBand(handlerErr, cause error) error {
	if len(a.rows) > 1 {
		// The failure may be any member's: they run one by one, where it counts.
		a.r.journal.MarkLost(a.runs)
		a.watch.all(PutOff)
		return cause
	}
	t, result := a.rows[0], handler.ResultOf(handlerErr)
	next := after(a.r.log, a.h, t, result, t.Begun())
	for try := range 6 {
		if try > 0 {
			store.Pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		found, err := a.RecordAside(t, next)
		if err == nil && found {
			a.watch.change(t.ID, next)
			a.watch.confirm()
			if next.Reason != "" {
				a.r.died(t, next)
			}
			a.r.due(next.Wait)
			return cause
		}
	}
	if result.Action == handler.ActionSnooze {
		a.r.journal.ForgetRuns(a.runs) // no attempt
		return cause
	}
	err := a.OrphanRun(t, a.runs.Token)
	if err == nil {
		a.watch.all(Retry)
	}
	return errors.Join(cause, err)
}

func (a *attempt) tasks() []*store.Row { return a.rows }

// cancelTask ends the handler's context as one of its tasks was canceled.
func (a *attempt) cancelTask(id int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.canceled == nil {
		a.canceled = map[int64]bool{}
	}
	a.canceled[id] = true
	if a.cancel != nil {
		a.cancel(outbox.ErrCanceled)
	}
}

// handlerContext ends when the relay gives up waiting for handlers, and when one of the tasks is
// canceled.
func (a *attempt) handlerContext() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(a.r.handling)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel = cancel; len(a.canceled) > 0 {
		cancel(outbox.ErrCanceled)
	}
	return ctx, func() { cancel(nil) }
}

func (a *attempt) canceledIDs() (canceled []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.canceled {
		canceled = append(canceled, id)
	}
	return canceled
}

const forgetCancelSQL = `/* outbox: forget a request to cancel */
DELETE FROM outbox.cancel WHERE task_id = $1`

// endCanceled undoes what the handler did and removes the canceled task. Of a batch the others go
// back as they were.
func (a *attempt) endCanceled(ctx context.Context, out callResult) error {
	last := len(a.rows) == 1
	err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := a.undo(ctx, c); err != nil || !last {
			return err
		}
		if _, err := c.ExecContext(ctx, a.ForgetTasks(a.rows)); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, a.SQL(forgetCancelSQL), a.rows[0].ID); err != nil {
			return err
		}
		if err := a.Count(ctx, c, "canceled", []string{a.h.Type}); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	if err != nil {
		return a.broken(ctx, out, err)
	}
	if !last {
		a.r.journal.ForgetRuns(a.runs)()
		a.r.journal.Close(a.runs)
		a.giveBack()
		a.removeCanceled()
		return nil
	}
	a.watch.set(a.rows[0].ID, Canceled)
	if err := a.commit(); err != nil {
		a.r.journal.ForgetRuns(a.runs)
		return err
	}
	logCanceled(a.r.log, a.h.Type, a.canceledIDs())
	return nil
}

// removeCanceled removes the canceled tasks of a claim that is gone, if they can be had; else
// relays do with their heartbeats.
func (a *attempt) removeCanceled() {
	canceled := a.canceledIDs()
	a.watch.canceled(canceled)
	for try := range 6 {
		if try > 0 {
			store.Pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		var n int64
		err := a.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, a.SQL(removeCanceledSQL), pq.Array(canceled))
			if err == nil {
				n, err = result.RowsAffected()
			}
			return err
		})
		if err == nil && n >= int64(len(canceled)) {
			logCanceled(a.r.log, a.h.Type, canceled)
			return
		}
	}
}
