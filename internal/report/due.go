package report

import (
	"sync"
	"time"
)

// Due is when tasks are due that runs have scheduled or postponed.
type Due struct {
	Changed chan struct{} // of capacity one: a task was scheduled

	mu        sync.Mutex
	next      time.Time
	postponed time.Time // the last time to which a task was postponed for the sake of another
}

func newDue() *Due { return &Due{Changed: make(chan struct{}, 1)} }

// Schedule notes that a task is due after wait.
func (d *Due) Schedule(wait time.Duration) {
	at := time.Now().Add(wait)
	d.mu.Lock()
	if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
	d.mu.Unlock()
	Poke(d.Changed)
}

// Postpone notes that a task waits for the sake of another.
func (d *Due) Postpone(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := time.Now().Add(wait); at.After(d.postponed) {
		d.postponed = at
	}
}

// MayBePostponed reports whether a task that is due at the given time may be postponed.
func (d *Due) MayBePostponed(due time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !due.After(d.postponed.Add(100 * time.Millisecond)) // the clocks differ
}

// Take returns the given time, or that of the next task that was scheduled since the last call,
// whichever comes first. Zero is no time.
func (d *Due) Take(next time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.next; next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	d.next = time.Time{}
	return next
}

// Poke makes a channel of capacity one ready, if it is not.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
