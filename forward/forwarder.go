package forward

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

// Forwarder publishes the tasks of one type. It is safe for concurrent use.
type Forwarder struct {
	config   *config
	taskType string
	to       Publisher
	circuits circuits
	late     lateEvents

	published, permanent, temporary, unavailable atomic.Int64
}

// Stats are a Forwarder's counts of events since it was registered, and the state of its circuits.
type Stats struct {
	Published   int64 // acknowledged
	Permanent   int64 // refused for good: dead letters
	Temporary   int64 // failed: retried, as attempts
	Unavailable int64 // postponed without an attempt, as the broker or the target takes nothing or asks to wait
	// Pause is how long until the next trial of an open circuit: the longest, if several are open.
	// It is 0 while none is. [Forwarder.Health] says where events wait, and why.
	Pause time.Duration
}

// Register publishes the tasks of one type: it registers a Batch handler, which does not decode the
// payload. See the package for the meaning of the publisher's errors. It panics if the type is
// registered already, the publisher or an option is nil, or an option is out of range.
func Register[P any](reg *handlers.Registry, t outbox.TaskType[P], publisher Publisher, opts ...Option) *Forwarder {
	c := newConfig(t.Name(), opts)
	if c.task != nil {
		panic(fmt.Sprintf("forward: %s: TaskOptions are for Fanout: Register makes no tasks", t.Name()))
	}
	return register(reg, t.Name(), c, publisher)
}

func register(reg *handlers.Registry, taskType string, c *config, to Publisher) *Forwarder {
	if to == nil {
		panic(fmt.Sprintf("forward: the Publisher of %s is nil", taskType))
	}
	limit := c.timeout + trialGrace
	f := &Forwarder{config: c, taskType: taskType, to: to, circuits: circuits{taskType: taskType, limit: limit}}
	of := outbox.NewTaskType[json.RawMessage](taskType)
	opts := append(c.handler, handlers.Use(withLogger), handler.Forwards.(handlers.Option))
	handlers.Batch(reg, of, c.batch, f.handle, opts...)
	return f
}

// TaskType is the name of the type whose tasks it publishes.
func (f *Forwarder) TaskType() string { return f.taskType }

// Stats returns the counts of the Forwarder.
func (f *Forwarder) Stats() Stats {
	s := Stats{f.published.Load(), f.permanent.Load(), f.temporary.Load(), f.unavailable.Load(), 0}
	for _, c := range f.circuits.all() {
		s.Pause = max(s.Pause, time.Until(c.until), time.Nanosecond)
	}
	return s
}

type loggerKey struct{}

// withLogger hands the relay's logger to handle.
func withLogger(next handlers.Func) handlers.Func {
	return func(ctx context.Context, call *handlers.Call) error {
		return next(context.WithValue(ctx, loggerKey{}, call.Logger()), call)
	}
}

func loggerOf(ctx context.Context) *slog.Logger {
	if log, ok := ctx.Value(loggerKey{}).(*slog.Logger); ok {
		return log
	}
	return slog.Default()
}

// handle publishes the events of a batch. The BatchResult has an error for each event that the
// broker did not acknowledge.
func (f *Forwarder) handle(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[json.RawMessage]) error {
	c := &call{f: f, log: loggerOf(ctx), failed: handlers.BatchResult{}, passes: map[string]pass{}}
	broker, refused := f.circuits.enterBroker(ctx)
	if refused != nil {
		for _, t := range tasks {
			c.postpone(t, refused.err, refused.wait)
		}
		return c.failed
	}
	c.passes[broker.target] = broker
	defer c.endTrials() // after a panic, or if no event was sent
	c.choose(ctx, tasks)
	if len(c.events) > 0 {
		limit, cancel := context.WithTimeout(ctx, f.config.timeout)
		defer cancel()
		errs := f.to.Publish(limit, slices.Clone(c.events))
		if errs != nil && len(errs) != len(c.events) {
			return fmt.Errorf("forward: %T.Publish returned %d errors for %d events", f.to, len(errs), len(c.events))
		}
		c.settle(limit, errs)
	}
	if len(c.failed) == 0 {
		return nil
	}
	return c.failed
}
