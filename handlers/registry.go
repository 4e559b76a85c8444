// Package handlers is the registry of an app's task handlers: an http.ServeMux for tasks.
//
//	reg := handlers.New()
//	handlers.Tx(reg, GrantCredit, grantCredit)
//	handlers.Batch(reg, PublishEvent, 500, publish)
//	handlers.Leased(reg, SendMail, sendMail, handlers.Timeout(time.Minute))
//
// There are three kinds, chosen at registration:
//
//   - Tx: the handler gets the transaction that removes its task, so its writes and the removal commit
//     together, exactly once. For work in the same database; at most 30 s.
//   - Batch: the same for up to n tasks at once. For forwarding and bulk writes.
//   - Leased: no transaction is open while it runs. For mail, HTTP, and all that is slow. It runs at
//     least once; [outbox.Task.Complete] makes its database writes exactly-once.
//
// A handler returns nil (done), an error (failed: again after the [Backoff], or a dead letter after
// the last of [MaxAttempts]), or a result such as that of [Snooze], also wrapped in another error.
//
// [Middleware] sees each call, and [ActionOf] tells it what a result asks for.
package handlers

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/handler"
)

// Registry maps task types to handlers. Register everything before relay.New; a relay works with
// what was registered by then. The zero Registry is empty and has no defaults. A Registry is safe
// for concurrent use.
type Registry struct {
	defaults   []Option
	mu         sync.Mutex
	handlers   map[string]*registration
	middleware []Middleware
}

// New returns an empty registry. The options are defaults for each registration, whose own options
// come after them: New(Strict(), Timeout(20*time.Second)) for example. A default that a kind of
// handler refuses makes its registration panic.
func New(defaults ...Option) *Registry {
	return &Registry{defaults: slices.Clone(defaults)}
}

// Use adds middleware around every handler of the registry, also around those that were registered
// before. The first one added is the outermost.
func (r *Registry) Use(m ...Middleware) {
	if hasNil(m) {
		panic("handlers: Use: a Middleware is nil")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.middleware = append(r.middleware, m...)
}

// registered returns what is registered now, sorted by type.
func (r *Registry) registered() []*handler.Handler {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*handler.Handler, 0, len(r.handlers))
	for _, name := range slices.Sorted(maps.Keys(r.handlers)) {
		registered := r.handlers[name]
		h, call := registered.Handler, wrap(wrap(caught(registered.call), registered.middleware), r.middleware)
		h.Run = func(ctx context.Context, tx *sql.Tx, claim handler.Claim, tasks []*outbox.Task[json.RawMessage]) error {
			ids := taskIDs(tasks) // as middleware may change its tasks
			plain, codecs, undecoded := decodeAll(h.Codecs, tasks)
			c := &Call{Type: h.Type, Kind: h.Kind, Tasks: plain, ClaimStart: claim.Began, ClaimEnd: claim.Ended, tx: tx,
				log: claim.Log, undecoded: undecoded}
			return checkResult(&h, ids, codecs, call(ctx, c))
		}
		out = append(out, &h)
	}
	return out
}

func taskIDs(tasks []*outbox.Task[json.RawMessage]) []int64 {
	ids := make([]int64, len(tasks))
	for i, t := range tasks {
		ids[i] = t.ID
	}
	return ids
}

// add registers a handler; its caller was called by the app.
func add[P any](r *Registry, kind outbox.Kind, t outbox.TaskType[P], size int, missing bool, opts []Option, call func(*payloads) Func) {
	if r == nil {
		panic(fmt.Sprintf("handlers: %s: the Registry is nil: make it with handlers.New", t.Name()))
	}
	decoder, err := newPayloads(reflect.TypeFor[P]())
	ofType := t.New(*new(P)).Options
	h := newRegistration(handler.Handler{Type: t.Name(), Kind: kind, BatchSize: size, Options: ofType,
		Codecs: codec.Of(ofType)}, slices.Concat(r.defaults, opts))
	if err != nil {
		panic(fmt.Sprintf("handlers: %s: %v", h.Type, err))
	}
	decoder.strict = h.strict
	h.call, h.place = call(decoder), "an unknown place"
	if _, file, line, ok := runtime.Caller(2); ok {
		h.place = fmt.Sprintf("%s:%d", file, line)
	}
	if missing {
		panic(fmt.Sprintf("handlers: the handler of %s registered at %s is nil", h.Type, h.place))
	}
	if h.Type == "" {
		panic(fmt.Sprintf("handlers: the task type registered at %s is the zero TaskType: make it with outbox.NewTaskType", h.place))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.handlers[h.Type]; old != nil {
		panic(fmt.Sprintf("handlers: task type %s is registered twice: at %s and at %s", h.Type, old.place, h.place))
	}
	if r.handlers == nil {
		r.handlers = map[string]*registration{}
	}
	r.handlers[h.Type] = h
}

// Tx registers a handler that gets the transaction that removes its task. Its writes through tx and
// the removal commit together when it returns nil; otherwise its writes are rolled back. It must
// not commit or roll back tx, nor use it after it returned, and must not do network I/O: the
// transaction stays open. A lock is waited for 10 s at most (lock_timeout), and the server cancels
// a statement at the handler's timeout.
//
// A handler that commits tx gives up the guarantees: its task is done, or a dead letter if the
// handler fails after that, with the reason committed; a result that keeps its writes is no failure. One
// that rolls tx back has failed.
//
// Registration panics if the type is registered already, r, h or an option is nil, t is the zero
// TaskType or an option is out of range; see [Timeout].
func Tx[P any](r *Registry, t outbox.TaskType[P], h func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error, opts ...Option) {
	add(r, outbox.KindTx, t, 1, h == nil, opts, func(p *payloads) Func {
		return func(ctx context.Context, c *Call) error {
			task := &outbox.Task[P]{}
			if err := decode(task, c, p); err != nil {
				return err
			}
			return h(ctx, c.tx, task)
		}
	})
}

// Batch registers a handler that is called with up to size tasks, in the order of claiming, and the
// transaction that removes them all. Its result is for all: after an error nothing is kept, no
// attempt is counted, and the tasks run again one by one, where failures count. To fail only some,
// or for a result of each, return a [BatchResult]: the effects of the call are kept, so it must have
// written nothing for those that it fails.
//
// What [Tx] says of tx holds for all tasks of the batch; after a commit of the handler a BatchResult
// still says which of them failed. Their payloads are in memory together.
// Registration panics as in [Tx], and if size is not within 1 to 10,000.
func Batch[P any](r *Registry, t outbox.TaskType[P], size int, h func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[P]) error, opts ...Option) {
	add(r, outbox.KindBatch, t, size, h == nil, opts, func(p *payloads) Func {
		return func(ctx context.Context, c *Call) error {
			bad, decoder := BatchResult{}, unmarshaler{plain: p.plain}
			block := make([]outbox.Task[P], len(c.Tasks))
			tasks := make([]*outbox.Task[P], 0, len(c.Tasks))
			for i, raw := range c.Tasks {
				handler.Fill(&block[i], raw)
				err := c.undecoded[raw.ID]
				if err == nil {
					err = decoder.unmarshal(raw.Payload, &block[i].Payload)
				}
				if err == nil {
					err = p.check(c, raw)
				}
				if err != nil {
					bad[raw.ID] = err
					continue
				}
				tasks = append(tasks, &block[i])
			}
			if len(tasks) == 0 {
				return bad
			}
			err := h(ctx, c.tx, tasks)
			return bad.join(taskIDs(c.Tasks), err)
		}
	})
}

// Leased registers a handler that runs outside any transaction, under a lease that its relay's
// heartbeat keeps alive. It may run more than once: send [outbox.Task.Key] as idempotency key with
// calls that leave the database, and write to it through [outbox.Task.Complete]. ctx ends when the
// lease is lost. Its goroutine may run other tasks' handlers after it, so it must undo each
// runtime.LockOSThread.
//
// Registration panics as in [Tx].
func Leased[P any](r *Registry, t outbox.TaskType[P], h func(ctx context.Context, task *outbox.Task[P]) error, opts ...Option) {
	add(r, outbox.KindLeased, t, 1, h == nil, opts, func(p *payloads) Func {
		return func(ctx context.Context, c *Call) error {
			task := &outbox.Task[P]{}
			if err := decode(task, c, p); err != nil {
				return err
			}
			return h(ctx, task)
		}
	})
}

// decode copies the task of a call with its payload as a P. The error does not repeat the payload.
func decode[P any](t *outbox.Task[P], c *Call, p *payloads) error {
	raw := c.Tasks[0]
	handler.Fill(t, raw)
	if err := c.undecoded[raw.ID]; err != nil {
		return err
	}
	if err := unmarshal(raw.Payload, &t.Payload, p.plain); err != nil {
		return err
	}
	return p.check(c, raw)
}

func init() {
	handler.Registered = func(registry any) []*handler.Handler { return registry.(*Registry).registered() }
	handler.Forwards = Option(func(r *registration) { r.Forwards = true })
	handler.IsBatchResult = func(err error) bool {
		switch err.(type) {
		case BatchResult, *BatchResult: // whose members Unwrap would give
			return true
		}
		return false
	}
}
