package forward

import (
	"testing"
	"testing/synctest"
	"time"
)

// An open circuit lets nobody through; after its pause one call tries. The pauses grow to a minute.
func TestTheCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c circuit
		enter := func(want bool) {
			t.Helper()
			if wait, ok := c.enter(t.Context()); ok != want || !ok && wait <= 0 {
				t.Fatalf("entered %v, want %v; wait %v", ok, want, wait)
			}
		}
		enter(true)
		enter(true) // many at once while it is closed
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			if got := c.failed(0); got != want*time.Second {
				t.Fatalf("open for %v, want %v s", got, want)
			}
			if again := c.failed(0); again != want*time.Second {
				t.Fatalf("a second call that fails at the same time opens it for %v", again)
			}
			time.Sleep(want*time.Second + time.Millisecond)
			enter(true)
			if _, ok := c.enter(t.Context()); ok {
				t.Fatal("a second call tries at the same time")
			}
		}
		c.left() // a call that ended without a result
		enter(true)
		c.succeeded()
		enter(true)
		if c.open() != 0 || c.failed(0) != time.Second {
			t.Error("a success does not close the circuit")
		}
		if got := c.failed(time.Hour); got != time.Hour || c.open() != time.Hour {
			t.Errorf("the publisher's own pause: %v", got)
		}
		began := time.Now()
		enter(false)
		if waited := time.Since(began); waited != patience {
			t.Errorf("waited %v, want %v", waited, patience)
		}
	})
}

// A success lets those through that wait.
func TestASuccessWakesThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c circuit
		c.failed(0)
		time.Sleep(time.Second)
		if _, ok := c.enter(t.Context()); !ok {
			t.Fatal("the first call does not try")
		}
		through := make(chan bool)
		go func() {
			_, ok := c.enter(t.Context())
			through <- ok
		}()
		synctest.Wait()
		c.succeeded()
		if !<-through {
			t.Error("the waiting call did not get through")
		}
	})
}
