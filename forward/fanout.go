package forward

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/copied"
)

// Target is one of several publishers of a type's events, with the options for it. Its Publisher is
// required.
type Target struct {
	Publisher Publisher
	Options   []Option
}

// Fanout publishes the tasks of one type to several targets, each with progress, retries and dead
// letters of its own. A handler of the type replaces each task by one for each target, in one
// transaction. Their types are the type's name, a slash, and the target's name, as in
// order.placed/billing. All have the event's id, time, ordering key, priority, headers and the
// like, but not its limits and delay. Limits of payloads and headers do not apply to copies.
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
	forwarders, all := map[string]*Forwarder{}, []*Forwarder(nil)
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		c := newConfig(t.Name(), slices.Concat(opts, targets[name].Options))
		c.target = name
		f := register(reg, t.Name()+"/"+name, c, targets[name].Publisher)
		forwarders[name], all = f, append(all, f)
	}
	c := newConfig(t.Name(), opts)
	handlers.Batch(reg, outbox.NewTaskType[json.RawMessage](t.Name()), c.batch,
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
