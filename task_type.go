package outbox

import (
	"context"
	"slices"
)

// TaskType ties a task type's name to the Go type of its payload, for Enqueue and for the handlers.
// It is a value to keep in a package variable; it is safe for concurrent use.
type TaskType[P any] struct {
	name string
	opts []Option
}

// NewTaskType names a task type whose payload is a P, as encoding/json encodes it. The options are
// defaults for each Enqueue, which can override them. It panics if name is empty, longer than 128
// bytes, not UTF-8 or holds a character that does not print, or if an option is invalid.
func NewTaskType[P any](name string, opts ...Option) TaskType[P] {
	if err := checkType(name); err != nil {
		panic(err)
	}
	if _, err := newSettings(opts); err != nil {
		panic(err)
	}
	if opts = slices.Clone(opts); len(opts) > 0 {
		opts = append(opts, endOfDefaults)
	}
	return TaskType[P]{name: name, opts: opts}
}

// Name is the name of the task type, as in the column task_type.
func (t TaskType[P]) Name() string { return t.name }

// Enqueue inserts a task with one statement on tx. See [Enqueue].
func (t TaskType[P]) Enqueue(ctx context.Context, tx Querier, payload P, opts ...Option) (Enqueued, error) {
	return Enqueue(ctx, tx, t.name, payload, t.with(opts)...)
}

// New prepares a task for EnqueueMany.
func (t TaskType[P]) New(payload P, opts ...Option) NewTask {
	return NewTask{Type: t.name, Payload: payload, Options: t.with(opts)}
}

func (t TaskType[P]) with(opts []Option) []Option {
	return append(t.opts[:len(t.opts):len(t.opts)], opts...)
}
