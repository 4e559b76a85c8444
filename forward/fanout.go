package forward

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Target is one of several places that events of a type go to.
type Target struct {
	To   Publisher
	Opts []Option // after those of Fanout
}

// Fanout publishes the tasks of one type to several targets, each with progress, retries and dead
// letters of its own. A handler of the type replaces each task by one for each target, in one
// transaction. Their types are the type's name, a slash, and the target's name, as in
// order.placed/billing. All have the event's id and time, its key, priority and headers.
//
// A target that is added is sent what is handled from then on. One that is taken away leaves tasks
// without a handler: the relay warns of them. It panics as [Register] does, and without targets.
func Fanout(reg *handlers.Registry, t TaskType, targets map[string]Target, opts ...Option) map[string]*Forwarder {
	if len(targets) == 0 {
		panic(fmt.Sprintf("forward: Fanout of %s has no targets", t.Name()))
	}
	forwarders := map[string]*Forwarder{}
	var types []string
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		taskType := t.Name() + "/" + name
		c := newConfig(t.Name(), slices.Concat(opts, targets[name].Opts))
		c.target = name
		forwarders[name] = register(reg, taskType, c, targets[name].To)
		types = append(types, taskType)
	}
	c := newConfig(t.Name(), opts)
	handlers.Batch(reg, outbox.NewTaskType[json.RawMessage](t.Name()), c.batch,
		func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[json.RawMessage]) error {
			var all []outbox.NewTask
			for _, task := range tasks {
				for _, taskType := range types {
					all = append(all, outbox.NewTask{Type: taskType, Payload: task.Payload, Options: c.copied(task)})
				}
			}
			_, err := outbox.EnqueueMany(ctx, tx, all)
			return err
		}, c.handler...)
	return forwarders
}

// copied are the options of a task's copy.
func (c *config) copied(t *outbox.Task[json.RawMessage]) []outbox.Option {
	opts := append(slices.Clone(c.task), outbox.Priority(t.Priority), outbox.Headers(t.Headers), outbox.AddHeaders(map[string]string{
		originID: strconv.FormatInt(t.ID, 10), originTime: t.CreatedAt.UTC().Format(time.RFC3339Nano)}))
	if t.OrderingKey != "" {
		opts = append(opts, outbox.OrderedBy(t.OrderingKey))
	}
	return opts
}
