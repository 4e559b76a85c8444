package leaserun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Extend implements outbox.Lease. The row goes first: the handler must not go on beyond it.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	fail := func(err error) error { return fmt.Errorf("relay: extend task %d: %w", l.row.ID, err) }
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
