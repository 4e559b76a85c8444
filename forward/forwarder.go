// Package forward publishes tasks as events by a [Publisher]: to Kafka, NATS, RabbitMQ and other
// brokers, or to webhooks. An app enqueues an event in the transaction of its business rows; relays
// publish it after the commit, at least once.
//
//	var OrderPlaced = outbox.NewTaskType[Order]("order.placed")
//
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// Publishers are modules of their own, in publish/;
// https://github.com/txoutbox/outbox/blob/main/docs/guide/delivering.md chooses. Close one after
// the Run of the relays has returned.
//
// An event follows CloudEvents 1.0 in binary mode: the task's payload is the body, the attributes
// are headers. Its id is the task's key, a UUID that is the same in every attempt and no other
// event's, so a consumer can tell a repetition: package inbox does.
//
// The error of the publisher decides on the event. A target here is an [Event.To]: a topic, a
// queue, a URL.
//
//   - nil: the broker has it. The task is done.
//   - [Permanent]: a retry cannot help, as with an event too large. The task is a dead letter at
//     once.
//   - [TargetUnavailable]: the event's target takes nothing now, as a full queue. The attempt
//     counts, unless the target says for how long to wait. Other events for this target wait; those
//     for other targets are sent.
//   - handlers.RetryAfter or Snooze: the event is sent again after that time. For the first three
//     days this counts no attempt.
//   - [Unavailable], or the end of the time limit: the broker cannot be reached. No attempt is
//     counted, and no event is sent for a while. If events for other targets pass, only those for
//     this target wait. If an event has no answer in time while others have one, every third such
//     time is an attempt.
//   - any other error is the event's own: the task is retried as after any failed attempt.
//
// Of several marks on one error, Permanent goes before TargetUnavailable, and that before
// Unavailable.
//
// If no event passes, a circuit breaker opens: of the target, or of the whole broker. No event is
// sent during its pause: a second, then two, at most a minute. Then one call, or one event of a
// target, is the trial. The time limit ends a trial that hangs. Each Forwarder of a process has its
// own circuits, of 1,000 targets at most. It forgets a circuit without a trial for ten minutes.
//
// Events that wait come back at most 1,000 a second, and at most five minutes after the pause. Such
// an event has the reason in its last error. After three days each wait counts as an attempt.
//
// The relay logs a warning when a circuit opens, and a record when it closes, for the first 20 that
// are open at once. [Forwarder.Health] names the open ones.
//
// Events of one ordering key are published one after the other: the next one only after the
// acknowledgement of the last. A dead letter of a key does not hold up the key.
package forward

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/copied"
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
	return register(reg, t.Name(), codec.Of(t.New(*new(P)).Options), c, publisher)
}

// register registers the handler, whose tasks the codecs decode.
func register(reg *handlers.Registry, taskType string, codecs *codec.Set, c *config, to Publisher) *Forwarder {
	if to == nil {
		panic(fmt.Sprintf("forward: the Publisher of %s is nil", taskType))
	}
	limit := c.timeout + trialGrace
	f := &Forwarder{config: c, taskType: taskType, to: to, circuits: circuits{taskType: taskType, limit: limit}}
	of := outbox.NewTaskType[json.RawMessage](taskType, codec.Option(codecs).(outbox.Option))
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

// Target is one of several publishers of a type's events, with the options for it. Its Publisher is
// required.
type Target struct {
	Publisher Publisher // required
	Options   []Option  // nil: none
}

// Fanout publishes the tasks of one type to several targets, each with progress, retries and dead
// letters of its own. A handler of the type replaces each task by one for each target, in one
// transaction. Their types are the type's name, a slash, and the target's name, as in
// order.placed/billing. All have the event's id, time, ordering key, priority, headers and the
// like, but not its limits, group key and delay. Limits of payloads and headers do not apply to copies.
// The outbox.Codec of the type encodes them as well, unless TaskOptions have another one.
// Enqueue no tasks of these types yourself.
//
// opts apply to each target, before its own options. BatchSize and HandlerOptions among them also
// apply to the handler that copies. Fanout returns the Forwarders by their targets' names. It
// panics as [Register] does, without targets, and for a target whose name is "".
//
// A new target gets the events that are handled from then on. A removed target leaves tasks without
// a handler: the relay warns of them.
func Fanout[P any](reg *handlers.Registry, t outbox.TaskType[P], targets map[string]Target,
	opts ...Option) map[string]*Forwarder {
	if len(targets) == 0 {
		panic(fmt.Sprintf("forward: Fanout of %s has no targets", t.Name()))
	}
	if _, unnamed := targets[""]; unnamed {
		panic(fmt.Sprintf("forward: Fanout of %s has a target without a name", t.Name()))
	}
	codecs := codec.Of(t.New(*new(P)).Options)
	forwarders, all := map[string]*Forwarder{}, []*Forwarder(nil)
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		c := newConfig(t.Name(), slices.Concat(opts, targets[name].Options))
		c.target = name
		if codecs != nil {
			c.task = slices.Concat([]outbox.Option{codec.Option(codecs).(outbox.Option)}, c.task)
		}
		f := register(reg, t.Name()+"/"+name, codec.Of(c.task), c, targets[name].Publisher)
		forwarders[name], all = f, append(all, f)
	}
	c := newConfig(t.Name(), opts)
	handlers.Batch(reg, outbox.NewTaskType[json.RawMessage](t.Name(), codec.Option(codecs).(outbox.Option)), c.batch,
		func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[json.RawMessage]) error {
			return copyTasks(ctx, tx, tasks, all)
		}, c.handler...)
	return forwarders
}

// copyBytes is the size from which copies are sent in another statement.
const copyBytes = 16 << 20

// copyTasks enqueues a copy of each task for each of the targets.
func copyTasks(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[json.RawMessage],
	targets []*Forwarder) error {
	var copies []outbox.TaskSpec
	size := 0
	for _, t := range tasks {
		control := withoutControl(maps.Clone(t.Headers))
		if control == nil {
			control = map[string]string{}
		}
		control[copied.EventID] = strconv.FormatInt(t.ID, 10)
		control[copied.EventTime] = t.CreatedAt.UTC().Format(time.RFC3339Nano)
		of := *t
		of.Headers = control
		payload := copied.Task[outbox.Task[json.RawMessage]]{Of: &of}
		for _, to := range targets {
			copies = append(copies, outbox.TaskSpec{Type: to.taskType, Payload: payload, Options: to.config.task})
			if size += len(t.Payload); size < copyBytes {
				continue
			}
			if _, err := outbox.EnqueueMany(ctx, tx, copies); err != nil {
				return err
			}
			copies, size = nil, 0
		}
	}
	_, err := outbox.EnqueueMany(ctx, tx, copies)
	return err
}

// ErrUnavailable is in the error of [Forwarder.Health] while a circuit is open.
var ErrUnavailable = errors.New("forward: events are not published")

// mostShown is how many open circuits Health names.
const mostShown = 5

// Health is nil while events are sent to all targets. Else it wraps [ErrUnavailable], and names the
// broker or up to five targets whose circuits are open in this process, since when, and the last
// error of each. It does no I/O and does not block. A circuit without a trial for ten minutes is
// forgotten.
func (f *Forwarder) Health() error {
	all := f.circuits.all()
	if len(all) == 0 {
		return nil
	}
	var texts []string
	for i, c := range all {
		if i == mostShown {
			texts = append(texts, fmt.Sprintf("and %d more targets", len(all)-i))
			break
		}
		texts = append(texts, fmt.Sprintf("%s since %s: %v", shown(c.target), c.since.UTC().Format(time.RFC3339),
			c.err))
	}
	return fmt.Errorf("%w: %s: %s", ErrUnavailable, f.taskType, strings.Join(texts, "; "))
}
