package relay

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/run"
)

const mostNamed = 20 // tasks of a type in a record

// drain bounds the wait for what runs.
type drain struct {
	log          *slog.Logger
	runner       *run.Runner
	leases       *run.Leases
	timeout      time.Duration
	stopHandling context.CancelCauseFunc
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
	if running := d.leases.Underway(); len(running) > 0 {
		counts := map[string]int{}
		for taskType, ids := range running {
			counts[taskType] = len(ids)
		}
		d.log.Info("outbox: relay stopping; it waits for the tasks that run", "relay_id", d.runner.RelayID, "tasks", counts, "drain_timeout", d.timeout)
	}
	if d.timeout < 0 {
		return
	}
	select {
	case <-time.After(d.timeout):
	case <-drained:
		return
	}
	running := d.leases.Underway()
	for taskType, ids := range running {
		slices.Sort(ids)
		running[taskType] = ids[:min(len(ids), mostNamed)]
	}
	d.log.Warn("outbox: the drain timeout has passed; handlers are stopped, their tasks will run again", "task_ids", running)
	d.stopHandling(outbox.ErrDraining)
	select {
	case <-time.After(run.AbandonAfter + pg.StatementTimeout/2):
		d.runner.Abandon()
	case <-drained:
	}
}
