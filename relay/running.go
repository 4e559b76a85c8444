package relay

import (
	"maps"
	"time"
)

func (r *Relay) started(rows []*row, a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range rows {
		r.running[t.id] = a
	}
}

func (r *Relay) stopped(rows []*row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range rows {
		delete(r.running, t.id)
	}
}

func (r *Relay) runningAttempts() map[int64]*attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.running)
}

// runningIDs are tasks inside open claims of this relay; some of them, if they are very many.
func (r *Relay) runningIDs() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]int64, 0, min(len(r.running), maxExcluded))
	for id := range r.running {
		if len(out) == maxExcluded {
			break
		}
		out = append(out, id)
	}
	return out
}

// due tells the dispatcher that a task was scheduled to run after wait.
func (r *Relay) due(wait time.Duration) {
	at := time.Now().Add(wait)
	r.mu.Lock()
	if r.dueNext.IsZero() || at.Before(r.dueNext) {
		r.dueNext = at
	}
	r.mu.Unlock()
	select {
	case r.duePoke <- struct{}{}:
	default:
	}
}

// postponed notes that a task was put off for another one's sake.
func (r *Relay) postponed(wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := time.Now().Add(wait); at.After(r.waitFor) {
		r.waitFor = at
	}
}

// waitingFor reports whether what is due at the given time may be such a task.
func (r *Relay) waitingFor(due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !due.After(r.waitFor.Add(100 * time.Millisecond)) // the clocks differ
}

func (r *Relay) takeDue() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.dueNext
	r.dueNext = time.Time{}
	return at
}
