package relay

import "time"

func (r *Relay) started(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[a] = struct{}{}
}

func (r *Relay) stopped(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, a)
}

// runningAttempts are the open claims of this relay, by task.
func (r *Relay) runningAttempts() map[int64]*attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int64]*attempt{}
	for a := range r.running {
		for _, t := range a.rows {
			out[t.id] = a
		}
	}
	return out
}

// runningIDs are tasks inside open claims of this relay; some of them, if they are very many.
func (r *Relay) runningIDs() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []int64{}
	for a := range r.running {
		for _, t := range a.rows[:min(len(a.rows), maxExcluded-len(out))] {
			out = append(out, t.id)
		}
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
