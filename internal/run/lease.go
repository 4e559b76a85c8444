package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// lease is a relay's hold on one task, as its handler sees it.
type lease struct {
	r         *Runner
	h         *handler.Handler
	row       *store.Row // as claimed
	token     string
	ctx       limited // of the handler
	extending sync.Mutex

	mu      sync.Mutex
	gone    bool            // the run is over, or its handler was abandoned
	left    context.Context // ends then; made when it is asked for
	endLeft context.CancelFunc

	// completing counts the calls of Complete under way; then completed tells.
	completing atomic.Int32
	completed  atomic.Pointer[verdict] // what became of the task
	prevented  atomic.Bool             // the latest Complete met the database's failure, not fn's
	unextended atomic.Bool             // so did the latest Extend
}

func (l *lease) id() store.Lease { return store.Lease{TaskID: l.row.ID, Token: l.token} }

// noHeartbeat reports whether no heartbeat keeps it: it ends with ctx.
func (l *lease) noHeartbeat() bool { return l.h.Lease > 0 }

// whenLeft is a context that ends when the run is over, or its handler is abandoned.
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

// Complete implements outbox.Lease. Whoever takes leases over skips the row that it has deleted, so
// fn's writes and the removal of the task are one.
func (l *lease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	l.completing.Add(1)
	defer l.completing.Add(-1)
	l.prevented.Store(false)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	left := l.whenLeft()
	if left.Err() != nil {
		return l.gaveUp()
	}
	c := &completion{removal: newRemoval(&l.r.Store, l.h, l.row, l.token), r: l.r, l: l, ctx: ctx}
	switch err := c.start(); {
	case errors.Is(err, outbox.ErrLeaseLost):
		return fmt.Errorf("%w: task %d", err, l.row.ID)
	case err != nil:
		l.prevented.Store(true)
		return c.failure(err)
	}
	return c.call(fn, context.AfterFunc(left, c.leave)) // the task's row must not stay locked
}

func (l *lease) gaveUp() error {
	return fmt.Errorf("%w: task %d: the run is over, or the relay has stopped", outbox.ErrLeaseLost, l.row.ID)
}
