package relay

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
)

// Load is what Config.WorkersByType decides from.
//
// Experimental: a minor version may change it.
type Load struct {
	Free  int        // workers that have nothing to do
	Types []TypeLoad // those that the relay has a handler for, in the order of their names
}

// TypeLoad is the load of one task type in this relay, as far as its last poll shows.
//
// Experimental: a minor version may change it.
type TypeLoad struct {
	Type     string
	Running  int           // workers that are busy with it
	Waiting  bool          // a task is due; not admin.StateWaiting
	Priority int           // if Waiting, of its most urgent task, with handlers.Priority; lower is more urgent
	Age      time.Duration // if Waiting, since its first task became due
}

// bounds asks Config.WorkersByType, of which anything may come.
type bounds struct {
	ctx    context.Context
	ask    func(context.Context, Load) map[string]int
	types  map[string]bool
	log    *slog.Logger
	logged bool
}

// of is plan.Params.Bound. After a panic there is no bound.
func (b *bounds) of(free int, types []plan.Load) (out map[string]int) {
	load := Load{Free: free, Types: make([]TypeLoad, len(types))}
	for i, t := range types {
		load.Types[i] = TypeLoad(t)
	}
	if err := guard.Call(func() { out = maps.Clone(b.ask(b.ctx, load)) }); err != nil {
		b.logOnce("outbox: Config.WorkersByType panicked; types are not bounded",
			"error", pgerr.Text(err), "stack", string(guard.Stack(err)))
		return nil
	}
	for name := range out {
		if !b.types[name] {
			b.logOnce("outbox: Config.WorkersByType bounds a type that this relay has no handler for", "task_type", name)
		}
	}
	return out
}

func (b *bounds) logOnce(text string, attrs ...any) {
	if !b.logged {
		b.logged = true
		b.log.Error(text, attrs...)
	}
}
