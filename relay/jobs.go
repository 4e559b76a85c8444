package relay

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/schema"
)

// hearing is the job of the heartbeat that reads, at each interval, what became of running tasks
// elsewhere.
type hearing struct {
	store    *store.Store
	runner   *txrun.Runner
	leases   *leaserun.Leases
	interval time.Duration
	ranAt    time.Time // when a task was seen to run
	heardAt  time.Time // when it was read what became of running tasks
}

// idle is how long a relay that runs nothing does not hear: then there are only requests that
// outlived a run elsewhere.
func (h *hearing) idle() time.Duration { return 10*h.interval - time.Second }

// run ends the contexts of handlers whose task was canceled or whose lease was taken, and removes
// canceled tasks that wait. It only reads, unless a task is canceled.
func (h *hearing) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	open, held := []int64{}, h.leases.Held()
	for _, taskIDs := range h.runner.Underway() {
		open = append(open, taskIDs...)
	}
	if len(open)+len(held) > 0 {
		h.ranAt = time.Now()
	} else if time.Since(h.ranAt) > h.idle() && time.Since(h.heardAt) < h.idle() {
		return h.interval, nil
	}
	return h.interval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		heard, err := h.store.Hear(ctx, conn, open, held)
		if err != nil {
			return err
		}
		h.runner.Cancel(heard.Canceled)
		h.leases.Cancel(heard.Canceled, heard.Lost)
		if len(heard.Asked) > 0 {
			if _, err := h.store.RemoveCanceled(ctx, conn, heard.Asked); err != nil {
				return err // it is heard again soon
			}
		}
		h.heardAt = time.Now()
		return nil
	})
}

// comparison is the job of the heartbeat that compares the runs of this relay in the tables with
// those of its memory. They differ where the database has lost results: after a failover to a
// standby that did not have them, or a restore in place. Nobody else ends these leases, as their
// relay lives.
type comparison struct {
	store    *store.Store
	leases   *leaserun.Leases
	journal  *store.Journal
	unbroken func() time.Time // since when heartbeats come through, in the same database
	ready    func()           // wakes the dispatcher
	log      *slog.Logger

	since time.Time // unbroken, and when it was compared last
	at    time.Time
}

// run compares after each outage and restore, and once in upkeep.ReapInterval.
func (c *comparison) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	since := c.unbroken()
	if since.Equal(c.since) && time.Since(c.at) < upkeep.ReapInterval {
		return upkeep.Interval, nil
	}
	more := false
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if more, err = c.compareLeases(ctx, conn); err != nil {
			return err
		}
		forgotten, err := c.journal.ForgetLeftOver(ctx, conn)
		more = more || forgotten == store.MostCompared
		return err
	})
	if err != nil || more {
		return upkeep.TakeoverInterval, err
	}
	c.since, c.at = since, time.Now()
	return upkeep.Interval, nil
}

// compareLeases frees the leases of this relay that it does not run.
func (c *comparison) compareLeases(ctx context.Context, conn pg.Querier) (more bool, err error) {
	rows, err := c.store.OtherLeases(ctx, conn, c.leases.Held())
	if err != nil {
		return false, err
	}
	over := c.leases.LeftOver(rows)
	if len(over) == 0 {
		return false, nil
	}
	more = len(rows) == store.MostCompared
	freed, err := c.store.FreeLeases(ctx, conn, over)
	if err != nil || len(freed) == 0 {
		return more, err
	}
	c.log.Warn("outbox: leased tasks had ended here, and the database has lost their results, "+
		"as by a failover or a restore; they run again", "tasks", len(freed),
		"task_ids", freed[:min(len(freed), mostNamed)])
	c.ready()
	return more, nil
}

const (
	expiryInterval = 10 * time.Second // outbox.ExpiresAt says so
	// expiryTasks are of one transaction, each in a subtransaction: other sessions read more than 64 of these
	// from the disk.
	expiryTasks  = 60
	refusedEvery = time.Minute // for the log
)

// expiry is the job that ends tasks that have expired where no claim comes to them: behind others, of a
// paused type, before they are due. Each relay does it for its types, as it knows their handlers, and
// an hour later for those that no living relay has: their relays may be away for a moment.
type expiry struct {
	store    *store.Store
	report   *report.Reporter
	handlers map[string]*handler.Handler
	now      func() time.Time
	unbroken func() time.Time // since when heartbeats come through: after an outage all relays look dead

	from      store.ExpiryPlace // how far the present round has come
	refusedAt time.Time         // when the log had it
}

// run ends a page of expired tasks as their claims would. What stays holds up none of the others: the next
// page is behind it, until a round is over.
func (e *expiry) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	what := store.Expiry{Others: e.now().Sub(e.unbroken()) > upkeep.LeaseDuration, From: e.from, Limit: expiryTasks,
		Dead: decide.OfExpired(nil).Change}
	for name, h := range e.handlers {
		what.Types, what.MaxAttempts = append(what.Types, name), append(what.MaxAttempts, int64(h.MaxAttempts))
		if decide.OfExpired(h).Outcome == decide.Expired {
			what.Discarded = append(what.Discarded, name)
		}
	}
	var page store.Expired
	err = on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		page, err = e.store.Expire(ctx, tx, what)
		return err
	})
	if err != nil {
		return 0, err
	}
	e.tell(page)
	if page.Empty {
		e.from = store.FirstExpiry
		return expiryInterval, nil
	}
	e.from = page.Last
	return 0, nil
}

// tell tells of tasks that were ended, and of those that could not be.
func (e *expiry) tell(page store.Expired) {
	if len(page.Refused) > 0 && e.now().Sub(e.refusedAt) >= refusedEvery {
		e.refusedAt = e.now()
		first := slices.Min(slices.Collect(maps.Keys(page.Refused)))
		e.report.Log.Error("outbox: PostgreSQL refuses the dead letters of expired tasks; they stay, and are tried again",
			"tasks", len(page.Refused), "task_id", first, "error", page.Refused[first])
	}
	byType := map[string][]*store.Row{}
	for _, r := range page.Ended {
		byType[r.TaskType] = append(byType[r.TaskType], r)
	}
	for name, rows := range byType {
		verdict := decide.OfExpired(e.handlers[name])
		e.report.Recorded(rows, slices.Repeat([]decide.Verdict{verdict}, len(rows)))
		watch := e.report.Watch(cmp.Or(e.handlers[name], &handler.Handler{Type: name}), rows, time.Now())
		for _, r := range rows {
			watch.Set(r.ID, verdict)
		}
		watch.Tell()
	}
}

// rowCheck is the job that looks whether row level security hides rows from the relay, which would
// find an outbox without tasks.
type rowCheck struct {
	schema string
	log    *slog.Logger
	found  func(hidden error) (before error) // for Health; it returns what was found before
}

func (c rowCheck) run(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error) {
	var hidden error
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if hidden = schema.CheckRowSecurity(ctx, conn, schema.Schema(c.schema)); errors.Is(hidden, schema.ErrRowSecurity) {
			return nil
		}
		return hidden
	})
	if err != nil {
		return 0, err
	}
	switch before := c.found(hidden); {
	case hidden != nil && (before == nil || before.Error() != hidden.Error()):
		c.log.Error("outbox: the relay does not see all tasks", "error", hidden)
	case hidden == nil && before != nil:
		c.log.Info("outbox: no rows are hidden from the relay any more")
	}
	if hidden != nil {
		return upkeep.Interval, nil
	}
	return upkeep.ReapInterval, nil
}
