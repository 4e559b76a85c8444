package run

import (
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/store"
)

// openClaim is a claim of a Tx or Batch handler that has not ended.
type openClaim interface {
	claimedRows() []*store.Row
	cancelTask(id int64) // ends the handler's context, as the task was canceled
}

// running are the open claims of a relay, and when what they put off is due.
type running struct {
	DuePoke chan struct{} // a task was scheduled

	mu       sync.Mutex
	attempts map[openClaim]struct{}
	dueNext  time.Time
	waitFor  time.Time // until when tasks are put off that RunOnce is to run
}

func newRunning() *running {
	return &running{DuePoke: make(chan struct{}, 1), attempts: map[openClaim]struct{}{}}
}

func (r *running) started(a openClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts[a] = struct{}{}
}

func (r *running) stopped(a openClaim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.attempts, a)
}

// runningAttempts are the open claims of this relay, by task.
func (r *running) runningAttempts() map[int64]openClaim {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int64]openClaim{}
	for a := range r.attempts {
		for _, t := range a.claimedRows() {
			out[t.ID] = a
		}
	}
	return out
}

// maxExcluded bounds how many running tasks a poll leaves out; more only cost a claim that finds
// little.
const maxExcluded = 1000

// RunningIDs are tasks inside open claims of this relay; some of them, if they are very many.
func (r *running) RunningIDs() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []int64{}
	for a := range r.attempts {
		rows := a.claimedRows()
		for _, t := range rows[:min(len(rows), maxExcluded-len(out))] {
			out = append(out, t.ID)
		}
	}
	return out
}

// due tells the dispatcher that a task was scheduled to run after wait.
func (r *running) due(wait time.Duration) {
	at := time.Now().Add(wait)
	r.mu.Lock()
	if r.dueNext.IsZero() || at.Before(r.dueNext) {
		r.dueNext = at
	}
	r.mu.Unlock()
	Poke(r.DuePoke)
}

// postponed notes that a task was put off for another one's sake.
func (r *running) postponed(wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := time.Now().Add(wait); at.After(r.waitFor) {
		r.waitFor = at
	}
}

// WaitingFor reports whether what is due at the given time may be such a task.
func (r *running) WaitingFor(due time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !due.After(r.waitFor.Add(100 * time.Millisecond)) // the clocks differ
}

func (r *running) TakeDue() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.dueNext
	r.dueNext = time.Time{}
	return at
}

// Poke makes a channel of capacity one ready, if it is not.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
