package run

import (
	"testing"
	"time"
)

// The dispatcher may be poked twice for what it took at once.
func TestADueTimeThatWasTakenIsKept(t *testing.T) {
	r := newRunning()
	r.due(time.Hour)
	r.due(time.Minute)
	next := r.TakeDue(time.Time{})
	if in := time.Until(next); in <= 0 || in > time.Minute {
		t.Fatalf("the next task is due in %v, want a minute", in)
	}
	if again := r.TakeDue(next); again != next {
		t.Errorf("nothing was scheduled since, and the next task is due at %v, want %v", again, next)
	}
	if r.due(time.Hour); r.TakeDue(next) != next {
		t.Error("a later task took the place of the next one")
	}
}
