package leaserun

import (
	"errors"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Result is how a run ends.
type Result struct {
	decide.Verdict      // its outcome is another one when the lease was lost
	Stuck          bool // it was refused by itself: Leases.Stuck has heard of it
	handler        *handler.Handler
	end            store.LeaseEnd
	waits          bool                 // for its row, perhaps: it has a transaction of its own
	run            interface{ ended() } // is told when it is committed, or will not be
}

// Handler is that of the task.
func (r *Result) Handler() *handler.Handler { return r.handler }

func (r *Result) lease() store.Lease {
	return store.Lease{TaskID: r.end.Row.ID, Token: r.end.Token}
}

// Keyed reports whether other tasks may wait for the end of this one.
func (r *Result) Keyed() bool { return r.end.Row.Keyed() }

// results wait to be written. While one group of them is being written the next one gathers: group
// commit without a timer.
type results struct {
	pending    sync.Mutex
	waiting    []*Result
	writers    int
	writing    sync.WaitGroup
	writeSlots chan struct{} // of results that are written one by one
}

const (
	ResultWriters     = 1 // groups that are written at once
	singleWrites      = 4 // results that are, after their group was refused
	maxDefiniteErrors = 3 // how often a result that PostgreSQL refuses is tried, each time by itself
	stuckAfter        = 3 // tries of one result by itself
)

func newResults() *results {
	return &results{writeSlots: make(chan struct{}, singleWrites)}
}

// finish hands a result on. Its run is told when it is committed, when the lease proved to be lost, or
// when the relay gives up as it stops. A result is repeated until its commit is confirmed, as a lost
// one would mean a second run.
func (l *Leases) finish(r *Result) {
	if r.waits {
		l.writeGroup([]*Result{r}, nil)
		return
	}
	l.results.pending.Lock()
	defer l.results.pending.Unlock()
	l.results.waiting = append(l.results.waiting, r)
	if l.results.writers < ResultWriters {
		l.results.writers++
		l.results.writing.Go(l.writeWaiting)
	}
}

// writeWaiting writes groups until nothing waits.
func (l *Leases) writeWaiting() {
	for {
		l.results.pending.Lock()
		group := l.results.waiting
		l.results.waiting = nil
		if len(group) == 0 {
			l.results.writers--
			l.results.pending.Unlock()
			return
		}
		l.results.pending.Unlock()
		l.writeGroup(group, nil)
	}
}

// giveUp tells the runs that their results will not be written.
func (l *Leases) giveUp(group []*Result) {
	for _, r := range group {
		r.Outcome = decide.Infrastructure
		l.mine.givenUp(r.lease())
	}
	l.tell(group)
}

// ended tells the runs that their leases have ended.
func (l *Leases) ended(group []*Result) {
	for _, r := range group {
		l.mine.written(r.lease())
	}
	l.tell(group)
}

func (l *Leases) tell(group []*Result) {
	for _, r := range group {
		r.run.ended()
	}
	l.Ended(group)
}

// withWriteSlot calls f when a slot is free, if slots are needed. When the relay is abandoned
// nobody waits for one any more.
func (l *Leases) withWriteSlot(slots chan struct{}, f func() error) error {
	if slots == nil {
		return f()
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
		return f()
	case <-l.abandoned:
		return errNoWriteSlot
	}
}

var errNoWriteSlot = errors.New("relay: others were being written")

// writeGroup repeats the group's transaction until it is confirmed or the relay is abandoned. A
// result that PostgreSQL refuses, or whose row is locked, must not hold up the others, nor those
// that gather: so they go one by one then, with slots, which bound how many are written at once.
func (l *Leases) writeGroup(group []*Result, slots chan struct{}) {
	retries := l.NewPace()
	unknown := false // an earlier try may have committed
	for try, refused := 1, 0; ; try++ {
		retries.Try()
		began := time.Now()
		err := l.withWriteSlot(slots, func() error { return l.write(group, unknown) })
		if err == nil {
			retries.OK()
			l.ended(group)
			return
		}
		if code := pgerr.Code(err); code != "" && !pgerr.Lost(err) && !(pgerr.Conflict(err) && try < pg.ConflictTries) {
			if slots == nil {
				for i := range group {
					l.results.writing.Go(func() { l.writeGroup(group[i:i+1:i+1], l.results.writeSlots) })
				}
				return
			}
			switch code[:2] {
			case "22", "23", "54", "P0", "XX": // for what is in the row, or by a trigger; all else may pass
				refused++
			}
			if refused == maxDefiniteErrors {
				l.Report.Log.Error("outbox: the result of a leased task was refused; it stays leased until its lease "+
					"or this relay ends", "task_type", group[0].end.Row.TaskType, "task_id", group[0].end.Row.ID,
					"error", pgerr.LogText(err))
				l.giveUp(group)
				return
			}
			if try >= stuckAfter {
				l.Stuck(group[0].handler, err, began, !group[0].Stuck)
				group[0].Stuck = true
			}
		}
		unknown = unknown || pgerr.Code(err) == "" || pgerr.Lost(err)
		select {
		case <-time.After(retries.Fail()):
		case <-retries.Answered:
		case <-l.abandoned:
			l.Report.Log.Warn("outbox: the relay stopped before the results of leased tasks were written; they will run again",
				"tasks", len(group), "error", pgerr.LogText(err))
			l.giveUp(group)
			return
		}
	}
}

// EndOf is the end of a lease by a verdict.
func EndOf(h *handler.Handler, r *store.Row, token string, v decide.Verdict, result string) store.LeaseEnd {
	end := store.LeaseEnd{Row: r, Token: token, Done: v.Outcome.Gone(), Counted: v.Outcome.Counted(),
		Back: v.Back, Change: v.Change}
	if v.Outcome.Finishes() {
		end.Keep, end.Finish = h.Retention, decide.FinishOf(h, v, result)
	}
	if v.Back || v.Outcome == decide.Released {
		end.LostBy = r.LostBy
	}
	return end
}

// write ends the leases in one transaction. A lease that is not there changes nothing, and is
// logged; unknown: it may have ended by an earlier try, whose COMMIT got no answer.
func (l *Leases) write(group []*Result, unknown bool) error {
	ends := make([]*store.LeaseEnd, len(group))
	for i, r := range group {
		ends[i] = &r.end
	}
	if err := l.Store.EndLeases(ends); err != nil {
		return err
	}
	for _, r := range group {
		row := r.end.Row
		switch {
		case r.end.Held:
			l.Report.Recorded([]*store.Row{row}, []decide.Verdict{r.Verdict})
		case unknown:
			r.Outcome = decide.Infrastructure
			l.Report.Log.Info("outbox: result already recorded or lease lost (COMMIT outcome unknown)",
				"task_type", row.TaskType, "task_id", row.ID)
		default:
			r.Outcome = decide.LeaseLost
			l.logLost(row)
		}
	}
	return nil
}

func (l *Leases) logLost(r *store.Row) {
	l.Report.Log.Warn("outbox: a lease was lost before its task ended; another run decides",
		"task_type", r.TaskType, "task_id", r.ID)
}
