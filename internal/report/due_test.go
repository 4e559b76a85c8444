package report

import (
	"testing"
	"time"
)

// The dispatcher may be poked twice for what it took at once.
func TestADueTimeThatWasTakenIsKept(t *testing.T) {
	d := newDue()
	d.Schedule(time.Hour)
	d.Schedule(time.Minute)
	next := d.Take(time.Time{})
	if in := time.Until(next); in <= 0 || in > time.Minute {
		t.Fatalf("the next task is due in %v, want a minute", in)
	}
	if again := d.Take(next); again != next {
		t.Errorf("nothing was scheduled since, and the next task is due at %v, want %v", again, next)
	}
	if d.Schedule(time.Hour); d.Take(next) != next {
		t.Error("a later task took the place of the next one")
	}
}
