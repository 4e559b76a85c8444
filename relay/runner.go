package relay

import (
	"context"
	"log/slog"
	"sync"

	"github.com/txoutbox/outbox/internal/pg"
)

// runner runs the tasks of one run of a relay, from their claim until what became of them is
// recorded.
type runner struct {
	store
	*running
	*observers
	log         *slog.Logger
	journal     *journal
	leases      *leases
	deadLetters *deadLetters
	newPace     func() pg.Pace

	claiming  context.Context // ends when claiming is to stop
	handling  context.Context // ends when the drain timeout has passed
	abandoned chan struct{}   // closed when nothing is waited for any more
	suspects  sync.Mutex      // held by the one suspect that runs
}

func (r *Relay) newRunner(claiming, handling context.Context) *runner {
	run := &runner{
		store:   store{schema: pg.Schema(r.config.Schema), relayID: newUUID(), conns: pg.NewPool(r.db)},
		running: newRunning(),
		log:     r.log, newPace: r.newPace,
		claiming: claiming, handling: handling, abandoned: make(chan struct{}),
	}
	run.observers = &observers{all: r.config.Observers, log: r.log, types: r.types}
	run.journal = newJournal(&run.store, r.newPace(), r.config.Workers)
	run.leases = newLeases(run)
	run.deadLetters = newDeadLetters(claiming, r.config.OnDead, r.log)
	return run
}

func (r *runner) stopping() bool { return r.claiming.Err() != nil }
