package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// lease is a relay's hold on one task, as its handler sees it.
type lease struct {
	r         *Relay
	h         *handlers.Handler
	id        int64
	token     string
	ctx       *limited // of the handler
	alone     bool     // no heartbeat keeps it: it ends with ctx
	extending sync.Mutex

	mu      sync.Mutex
	gone    bool            // the run is over, or the relay stops without the handler
	left    context.Context // ends then; made when it is asked for
	endLeft context.CancelFunc

	// completing counts the calls of Complete under way; then completed tells.
	completing atomic.Int32
	completed  atomic.Bool
	again      atomic.Bool // completed: for this time
	prevented  atomic.Bool // the latest Complete met the database's failure, not fn's
}

type leaseID struct {
	id    int64
	token string
}

// whenLeft is a context that ends when the run is over, or the relay stops without the handler.
func (l *lease) whenLeft() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == nil {
		l.left, l.endLeft = context.WithCancel(context.Background())
		if l.gone {
			l.endLeft()
		}
	}
	return l.left
}

func (l *lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	if l.endLeft != nil {
		l.endLeft()
	}
}

const lockLeaseSQL = `/* outbox: lock a leased task */
SELECT 1 FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid FOR UPDATE`

const completeSQL = `/* outbox: complete a leased task */
DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid`

// Complete implements outbox.Lease. The row is locked first: whoever takes leases over skips it then, so fn's
// writes and the removal of the task are one.
func (l *lease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	l.completing.Add(1)
	defer l.completing.Add(-1)
	l.prevented.Store(false)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	left := l.whenLeft()
	if left.Err() != nil {
		return fmt.Errorf("%w: task %d: the relay has stopped", outbox.ErrLeaseLost, l.id)
	}
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil { // it ended in the middle: perhaps by the loss of the lease
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fmt.Errorf("relay: complete task %d: %w", l.id, err)
	}
	l.prevented.Store(true)
	conn, tx, err := l.r.conns.begin(ctx)
	if err != nil {
		return fail(err)
	}
	undo := func() {
		_ = tx.Rollback()
		drop(conn)
	}
	stay := context.AfterFunc(left, undo) // the task's row must not stay locked
	committed := false
	defer func() {
		if stay() && committed {
			l.r.conns.put(conn)
		} else {
			undo()
		}
	}()
	_, err = tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL statement_timeout = '30s'; SET LOCAL lock_timeout = '10s'")
	if err != nil {
		return fail(err)
	}
	var found int
	err = tx.QueryRowContext(ctx, l.r.sql(lockLeaseSQL), l.id, l.token).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: task %d", outbox.ErrLeaseLost, l.id)
	}
	if err != nil {
		return fail(err)
	}
	l.prevented.Store(false)
	again, err := resultAgain(l.h, l.id, fn(tx))
	if err != nil {
		return err
	}
	// fn may have taken a role without rights here. Where the connection is gone before COMMIT arrives, the row is not locked for as long as fn may take.
	if _, err := tx.ExecContext(ctx, "SET LOCAL role TO DEFAULT; SET LOCAL idle_in_transaction_session_timeout = "+ms(bookkeeping)); err != nil {
		// fn's failure: it hid an error, or left rows open, which pgx calls a bad connection.
		return fail(err)
	}
	result, err := l.r.endLease(ctx, tx, l.h, l.id, l.token, again)
	if err = one(result, err); err != nil {
		l.prevented.Store(pgerr.Lost(err)) // the connection worked after fn
		return fail(err)
	}
	if err := tx.Commit(); err != nil {
		if pgerr.CommitFailed(err) {
			return fmt.Errorf("relay: complete task %d: commit: %w", l.id, err)
		}
		l.prevented.Store(true)
		return fmt.Errorf("%w: task %d: %w", outbox.ErrCommitUnknown, l.id, err)
	}
	committed = true
	l.again.Store(again != nil)
	l.completed.Store(true)
	if again != nil {
		l.r.due(again.Wait)
	}
	return nil
}
