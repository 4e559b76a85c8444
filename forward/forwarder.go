package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// TaskType is an outbox.TaskType of any payload.
type TaskType interface{ Name() string }

// Forwarder publishes the tasks of one type. It is safe for concurrent use.
type Forwarder struct {
	*config
	taskType string
	to       Publisher
	circuit  circuit
	late     lateEvents

	published, permanent, temporary, unavailable atomic.Int64
}

// Stats are counts since the process began, and the state of the circuit.
type Stats struct {
	Published   int64 // acknowledged
	Permanent   int64 // refused for good: dead letters
	Temporary   int64 // failed: retried, as attempts
	Unavailable int64 // put off without an attempt, as the broker was unavailable
	// Open is for how long no event is sent yet; 0 while all is well.
	Open time.Duration
}

// Register makes to the handler of a task type: a Batch handler, whose payload is not decoded. It
// panics if the type is registered already, to is nil, or an option is out of range. See the package
// for what becomes of errors.
func Register(reg *handlers.Registry, t TaskType, to Publisher, opts ...Option) *Forwarder {
	return register(reg, t.Name(), newConfig(t.Name(), opts), to)
}

func register(reg *handlers.Registry, taskType string, c *config, to Publisher) *Forwarder {
	if to == nil {
		panic(fmt.Sprintf("forward: the Publisher of %s is nil", taskType))
	}
	f := &Forwarder{config: c, taskType: taskType, to: to}
	handlers.Batch(reg, outbox.NewTaskType[json.RawMessage](taskType), c.batch, f.handle, c.handler...)
	return f
}

// TaskType is the name of the type whose tasks it publishes.
func (f *Forwarder) TaskType() string { return f.taskType }

// Stats returns what the Forwarder has done.
func (f *Forwarder) Stats() Stats {
	return Stats{f.published.Load(), f.permanent.Load(), f.temporary.Load(), f.unavailable.Load(), f.circuit.open()}
}

// handle publishes the events of a batch. What is not acknowledged has an error in the BatchError.
func (f *Forwarder) handle(ctx context.Context, _ outbox.Tx, tasks []*outbox.Task[json.RawMessage]) error {
	wait, ok := f.circuit.enter(ctx)
	if !ok {
		f.unavailable.Add(int64(len(tasks)))
		return handlers.Snooze(wait)
	}
	settled := false
	defer func() { // of a panic, or with nothing to publish
		if !settled {
			f.circuit.left()
		}
	}()
	failed := handlers.BatchError{}
	events, of := make([]*Event, 0, len(tasks)), make([]int64, 0, len(tasks))
	for _, t := range tasks {
		e, err := f.newEvent(t)
		if err != nil {
			f.permanent.Add(1)
			failed[t.ID] = handlers.Dead(err)
			continue
		}
		events, of = append(events, e), append(of, t.ID)
	}
	if len(events) == 0 {
		return failed
	}
	limit, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	errs := f.to.Publish(limit, events)
	if errs != nil && len(errs) != len(events) {
		return fmt.Errorf("forward: %T.Publish returned %d errors for %d events", f.to, len(errs), len(events))
	}
	down, longest, answered := 0, time.Duration(0), false
	late := map[int64]error{}
	for i, id := range of {
		var err error
		if errs != nil {
			err = errs[i]
		}
		after, gone := IsUnavailable(err)
		timedOut := limit.Err() != nil && errors.Is(err, limit.Err())
		if timedOut {
			late[id] = err
		}
		switch {
		case err == nil:
			f.published.Add(1)
			answered = true
		case IsPermanent(err):
			f.permanent.Add(1)
			failed[id] = handlers.Dead(err)
			answered = true
		case handlers.ActionOf(err) == "snooze":
			f.unavailable.Add(1)
			failed[id] = err
			answered = true
		case gone, timedOut:
			down, longest = down+1, max(longest, after)
			failed[id] = nil // below
		default:
			f.temporary.Add(1)
			failed[id] = err
			answered = true
		}
	}
	if !answered && down == len(late) {
		answered = f.late.atFault(slices.Collect(maps.Keys(late)))
	}
	if answered { // so the broker is not down
		for id, err := range late {
			if f.late.count(id) {
				f.temporary.Add(1)
				failed[id] = err
				down--
			}
		}
	}
	settled = true
	if down > 0 && !answered || longest > 0 {
		longest = f.circuit.failed(longest)
	} else {
		f.circuit.succeeded()
	}
	if down > 0 {
		f.unavailable.Add(int64(down))
		for id, err := range failed {
			if err == nil {
				failed[id] = handlers.Snooze(max(longest, leastPause) + rand.N(leastPause))
			}
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return failed
}
