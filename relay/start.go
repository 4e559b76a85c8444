package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Start is Run in the background, until Stop is called or ctx ends. ctx is for as long as the relay
// works: a ctx that ends with a time limit of the app's start ends the relay.
//
//	if err := r.Start(context.WithoutCancel(ctx)); err != nil {
//		return err
//	}
//	select {
//	case <-ctx.Done(): // SIGTERM
//	case <-r.Done(): // it ended by itself; Stop returns why
//	}
//	err := server.Shutdown(limit) // no more requests
//	return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
//
// Start returns nil once the relay claims tasks. It also returns nil while PostgreSQL is unavailable,
// or the database is a copy: the relay waits for the database in the background, and Health says why.
// It returns ErrRunning, and the errors of Run's start. It returns nil if a Stop or the end of ctx
// comes first.
//
// A relay that waited may still meet an error of Run's start. Then it ends: Done is closed, the log
// has the error, Health is ErrNotRunning, and Stop returns the error.
func (r *Relay) Start(ctx context.Context) error {
	x, err := r.begin(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer close(x.done)
		if err := r.execute(x, false); err != nil && closed(x.begun) {
			r.log.Error("outbox: relay ended", "error", pgerr.LogText(err))
		}
	}()
	select {
	case <-x.begun:
		return nil
	case <-x.done:
		r.forget(x)
		return x.err
	}
}

// Stop ends the relay, whichever of Start, Run and RunOnce it works by: it claims no more, and drains
// as Run does at the end of its context. Stop returns when that is done, with the error that the
// relay ended with. It returns nil if the relay was never started, or ended without an error.
//
// If ctx ends first, Stop returns its error, and the drain goes on. It is bounded by
// Config.DrainTimeout. A handler that calls Stop waits for itself.
func (r *Relay) Stop(ctx context.Context) error {
	r.mu.Lock()
	x := r.current
	r.mu.Unlock()
	if x == nil {
		return nil
	}
	x.stop()
	select {
	case <-x.done:
		return x.err
	case <-ctx.Done():
	}
	if closed(x.done) {
		return x.err
	}
	return ctx.Err()
}

// Done is closed when the relay has ended, whichever of Start, Run and RunOnce it worked by, and
// for whatever reason: what it ran has ended too, and it uses no connection. Before the first run
// Done returns the channel of that run. Each later run has a new channel. Why it ended is returned
// by Run and RunOnce, and after Start by Stop.
func (r *Relay) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// execution is one Start, Run or RunOnce.
type execution struct {
	ctx   context.Context
	stop  context.CancelFunc // of ctx
	begun chan struct{}      // closed when it claims tasks, or waits for its database
	done  chan struct{}      // closed at its end
	err   error              // once done
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// begin makes the present execution, which its caller ends by closing done.
func (r *Relay) begin(ctx context.Context) (*execution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil && !closed(r.current.done) {
		return nil, ErrRunning
	}
	if closed(r.done) {
		r.done = make(chan struct{})
	}
	x := &execution{begun: make(chan struct{}), done: r.done}
	x.ctx, x.stop = context.WithCancel(ctx)
	r.current = x
	return x, nil
}

// runHere returns at the end of the execution.
func (r *Relay) runHere(ctx context.Context, once bool) error {
	x, err := r.begin(ctx)
	if err != nil {
		return err
	}
	defer r.forget(x)
	defer close(x.done)
	return r.execute(x, once)
}

// execute runs once, or until x is stopped: anew when the database was replaced by a copy.
func (r *Relay) execute(x *execution, once bool) error {
	defer x.stop()
	begun := sync.OnceFunc(func() { close(x.begun) })
	others, leave := pg.Join(r.db, r.settings.conns)
	defer leave()
	if err := r.settings.fits(r.db.Stats().MaxOpenConnections, others); err != nil { // they began after New
		r.log.Warn("outbox: relays may wait for connections", "error", err)
	}
	for {
		x.err = r.run(x.ctx, r.params(once, begun, time.Now))
		if once || !errors.Is(x.err, ErrCopy) {
			return x.err
		}
	}
}

// run makes one run and waits for its end.
func (r *Relay) run(ctx context.Context, p runParams) error {
	x := newRun(ctx, p)
	defer x.close()
	r.showHealth(x.health)
	x.health.begin()
	defer func() {
		r.showHealth(nil)
		x.health.end()
	}()
	return x.run()
}

// forget has Stop return nil after an execution that has ended.
func (r *Relay) forget(x *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == x {
		r.current = nil
	}
}
