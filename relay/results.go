package relay

import (
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// results are transitions that wait to be written. While one group of them is being written the next one gathers: group commit
// without a timer.
type results struct {
	pending sync.Mutex
	waiting []*transition
	writers int
	writing sync.WaitGroup
	turns   chan struct{} // of transitions that are written alone
}

const (
	resultWriters     = 1 // groups that are written at once
	aloneWrites       = 4 // transitions that are, after their group was refused
	maxDefiniteErrors = 3 // how often a transition that PostgreSQL refuses is tried, each time alone
)

// finish hands a transition on. The run is told when it is committed, when the lease proved to be lost, or when the relay gives up as it stops.
// A transition is repeated until its commit is confirmed, as a lost one would mean a second run.
func (l *leases) finish(t *transition) {
	if t.apart {
		l.settle([]*transition{t}, nil)
		return
	}
	l.pending.Lock()
	defer l.pending.Unlock()
	l.waiting = append(l.waiting, t)
	if l.writers < resultWriters {
		l.writers++
		l.writing.Go(l.writeWaiting)
	}
}

// writeWaiting writes groups until nothing waits.
func (l *leases) writeWaiting() {
	for {
		l.pending.Lock()
		group := l.waiting
		l.waiting = nil
		if len(group) == 0 {
			l.writers--
			l.pending.Unlock()
			return
		}
		l.pending.Unlock()
		l.settle(group, nil)
	}
}

// over tells the runs that their leases have ended.
func (l *leases) over(group []*transition) {
	runs := make([]*leasedRun, 0, len(group))
	for _, t := range group {
		t.run.settled()
		runs = append(runs, t.run)
	}
	l.ended(runs)
}

// settle repeats the group's transaction until it is confirmed or the relay is abandoned. A transition that PostgreSQL refuses must not
// hold up the others, so they go one by one then: with turns, which bound how many are written at once.
func (l *leases) settle(group []*transition, turns chan struct{}) {
	backoff := newLoopBackoff()
	for try, refused := 1, 0; ; try++ {
		if turns != nil {
			turns <- struct{}{}
		}
		err := l.write(group)
		if turns != nil {
			<-turns
		}
		if err == nil {
			l.over(group)
			return
		}
		if code := pgerr.Code(err); code != "" && !pgerr.Lost(err) && !(pgerr.Conflict(err) && try < conflictTries) {
			if len(group) > 1 {
				for i := range group {
					l.writing.Go(func() { l.settle(group[i:i+1:i+1], l.turns) })
				}
				return
			}
			switch code[:2] {
			case "22", "23", "P0": // for what is in the row, or by a trigger; all else may pass
				refused++
			}
			if refused == maxDefiniteErrors {
				l.r.log.Error("outbox: the result of a leased task was refused; it stays leased until its lease or this relay ends", "task_type", group[0].row.taskType, "task_id", group[0].row.id, "error", safeText(err))
				l.over(group)
				return
			}
		}
		d, _ := backoff.Next()
		select {
		case <-time.After(d):
		case <-l.r.abandoned:
			l.r.log.Warn("outbox: the relay stopped before the results of leased tasks were written; they will run again", "tasks", len(group), "error", safeText(err))
			l.over(group)
			return
		}
	}
}
