package run

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/store"
)

// openClaim is a claim of a Tx or Batch handler that has not ended.
type openClaim struct {
	rows   []*store.Row
	ctx    context.Context // of the handler; ends when the relay gives up waiting for handlers
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	canceled []int64 // tasks
	current  int64   // the task of a group that runs; 0: all run
}

// cancelTask ends the handler's context as one of its tasks was canceled.
func (c *openClaim) cancelTask(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.canceled, id) {
		c.canceled = append(c.canceled, id)
	}
	if c.current == 0 || c.current == id {
		c.cancel(outbox.ErrCanceled)
	}
}

// begin is the context of the handler for one task of a group, and whether the task is canceled.
func (c *openClaim) begin(handling context.Context, id int64) (ctx context.Context, end func(), canceled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = id
	c.cancel(nil)
	c.ctx, c.cancel = context.WithCancelCause(handling)
	cancel := c.cancel
	return c.ctx, func() { cancel(nil) }, slices.Contains(c.canceled, id)
}

// end ends the handler's context as it has returned.
func (c *openClaim) end() { c.mu.Lock(); defer c.mu.Unlock(); c.cancel(nil) }

func (c *openClaim) canceledIDs() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.canceled)
}

// running are the open claims of a relay, and when what they put off is due.
type running struct {
	DuePoke chan struct{} // a task was scheduled

	mu      sync.Mutex
	open    map[*openClaim]struct{}
	dueNext time.Time
	waitFor time.Time // until when tasks are put off that RunOnce is to run
}

func newRunning() *running {
	return &running{DuePoke: make(chan struct{}, 1), open: map[*openClaim]struct{}{}}
}

func (r *running) started(handling context.Context, rows []*store.Row) *openClaim {
	c := &openClaim{rows: rows}
	c.ctx, c.cancel = context.WithCancelCause(handling)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[c] = struct{}{}
	return c
}

func (r *running) stopped(c *openClaim) {
	c.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

// openClaims are those of this relay, by task.
func (r *running) openClaims() map[int64]*openClaim {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[int64]*openClaim{}
	for c := range r.open {
		for _, t := range c.rows {
			out[t.ID] = c
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
	for c := range r.open {
		for _, t := range c.rows[:min(len(c.rows), maxExcluded-len(out))] {
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

// TakeDue returns the given time, or that of the next task that was scheduled since the last call,
// whichever comes first. Zero is no time.
func (r *running) TakeDue(next time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.dueNext; next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	r.dueNext = time.Time{}
	return next
}

// Poke makes a channel of capacity one ready, if it is not.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
