package leaserun

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// lease is a relay's hold on one task, as its handler sees it.
type lease struct {
	store     *store.Store
	report    *report.Reporter
	h         *handler.Handler
	row       *store.Row // as claimed
	token     string
	ctx       *call.Context // of the handler
	extending sync.Mutex

	mu      sync.Mutex
	isLeft  bool            // the run has ended, or its handler was abandoned
	left    context.Context // ends then; made when it is asked for
	endLeft context.CancelFunc

	// completing counts the calls of Complete under way; then end tells.
	completing atomic.Int32
	end        atomic.Pointer[decide.Verdict] // what became of the task
	prevented  atomic.Bool                    // the latest Complete met the database's failure, not fn's
	unextended atomic.Bool                    // so did the latest Extend
}

func (l *lease) id() store.Lease { return store.Lease{TaskID: l.row.ID, Token: l.token} }

// noHeartbeat reports whether no heartbeat keeps it: it ends with ctx.
func (l *lease) noHeartbeat() bool { return l.h.Lease > 0 }

// whenLeft is a context that ends when the run has ended, or its handler is abandoned.
func (l *lease) whenLeft() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == nil {
		l.left, l.endLeft = context.WithCancel(context.Background())
		if l.isLeft {
			l.endLeft()
		}
	}
	return l.left
}

func (l *lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isLeft = true
	if l.endLeft != nil {
		l.endLeft()
	}
}

// Complete implements tasklease.Lease. A takeover skips the row that it has deleted, so fn's writes and
// the removal of the task are one.
func (l *lease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	l.completing.Add(1)
	defer l.completing.Add(-1)
	l.prevented.Store(false)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	left := l.whenLeft()
	if left.Err() != nil {
		return l.leftError()
	}
	return l.complete(ctx, left, fn)
}

func (l *lease) leftError() error {
	return fmt.Errorf("%w: task %d: the run has ended, or the relay has stopped", outbox.ErrLeaseLost, l.row.ID)
}

// Extend implements tasklease.Lease. The row goes first: the handler must not go on beyond it.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	fail := func(err error) error { return pgerr.Within(fmt.Sprintf("relay: extend task %d", l.row.ID), err) }
	ended := func() error {
		return cmp.Or(context.Cause(l.ctx), context.Cause(ctx))
	}
	l.extending.Lock() // a worker has one connection
	defer l.extending.Unlock()
	if err := ended(); err != nil {
		return fail(err)
	}
	if l.completing.Load() > 0 {
		return fail(errors.New("its Complete is under way"))
	}
	sent, until, cause := time.Now(), leaseFor(d), error(call.TimedOut(d))
	if l.noHeartbeat() {
		until, cause = d, call.ErrRanOut
	}
	err := l.store.Extend(ctx, l.id(), until)
	l.unextended.Store(ended() == nil && pgerr.Blameless(err))
	switch {
	case errors.Is(err, outbox.ErrLeaseLost):
		if l.end.Load() == nil {
			l.ctx.Cancel(outbox.ErrLeaseLost)
		}
		return fail(err)
	case err != nil:
		if cause := ended(); cause != nil { // in the middle: drivers say a bad connection, or less
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fail(err)
	}
	l.ctx.Extend(sent.Add(d), cause)
	if err := context.Cause(l.ctx); err != nil { // it ended meanwhile
		return fail(err)
	}
	return nil
}

// leaseFor is how long a Leased handler's row stays its own for a timeout: by then the handler has
// been abandoned, and its failure recorded.
func leaseFor(timeout time.Duration) time.Duration {
	return timeout + call.Grace(timeout) + 2*call.AbandonAfter + pg.Bookkeeping
}
