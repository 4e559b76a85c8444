package relay

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/txrun"
)

const mostNamed = 20 // tasks of a type in a record

// drain bounds the wait for what runs.
type drain struct {
	log          *slog.Logger
	relayID      string
	runner       *txrun.Runner
	leases       *leaserun.Leases
	timeout      time.Duration
	stopHandling context.CancelCauseFunc
}

// underway are the tasks whose handlers run, by type.
func (d drain) underway() map[string][]int64 {
	out := d.leases.Underway()
	maps.Copy(out, d.runner.Underway()) // of other types
	return out
}

// run logs the number of running tasks when claiming ends, and their ids when the timeout has passed.
// Then it ends their handlers' contexts. Some time later it abandons results that the database does
// not take.
func (d drain) run(claiming context.Context, drained <-chan struct{}) {
	select {
	case <-claiming.Done():
	case <-drained:
		return
	}
	if running := d.underway(); len(running) > 0 {
		counts := map[string]int{}
		for taskType, ids := range running {
			counts[taskType] = len(ids)
		}
		d.log.Info("outbox: relay stopping; it waits for the tasks that run",
			"relay_id", d.relayID, "tasks", counts, "drain_timeout", d.timeout)
	}
	if errors.Is(context.Cause(claiming), ErrPoolClosed) { // no result is written any more
		d.stopHandling(outbox.ErrDraining)
		d.leases.Abandon()
		return
	}
	if d.timeout < 0 {
		return
	}
	select {
	case <-time.After(d.timeout):
	case <-drained:
		return
	}
	running := d.underway()
	for taskType, ids := range running {
		slices.Sort(ids)
		running[taskType] = ids[:min(len(ids), mostNamed)]
	}
	d.log.Warn("outbox: the drain timeout has passed; handlers are stopped, their tasks will run again",
		"task_ids", running)
	d.stopHandling(outbox.ErrDraining)
	select {
	case <-time.After(call.AbandonAfter + pg.StatementTimeout/2):
		d.leases.Abandon()
	case <-drained:
	}
}
