package forward

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errAway = errors.New("away")

// testCircuits are the circuits of a test, and what they log.
func testCircuits(t *testing.T) (s *circuits, log *slog.Logger, logged *strings.Builder) {
	t.Helper()
	logged = &strings.Builder{}
	return &circuits{taskType: "T", limit: 10 * time.Second}, slog.New(slog.NewTextHandler(logged, nil)), logged
}

// An open circuit lets nobody through; after its pause one call tries. The pauses grow to a minute.
func TestTheCircuit(t *testing.T) { synctest.Test(t, testTheCircuit) }

func testTheCircuit(t *testing.T) {
	const target = "queue"
	s, log, logged := testCircuits(t)
	enter := func(want bool) (p pass) {
		t.Helper()
		p, refused := s.enter(target)
		if (refused == nil) != want || refused != nil && (refused.wait <= 0 || refused.err == nil) {
			t.Fatalf("entered %v, want %v: %+v", refused == nil, want, refused)
		}
		return p
	}
	failed := func(after time.Duration) time.Duration { return s.failed(log, target, errAway, after) }
	enter(true)
	enter(true) // many at once while it is closed
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if got := failed(0); got != want*time.Second {
			t.Fatalf("open for %v, want %v s", got, want)
		}
		if again := failed(0); again != want*time.Second {
			t.Fatalf("a second call that fails at the same time opens it for %v", again)
		}
		enter(false)
		time.Sleep(want*time.Second + time.Millisecond)
		enter(true)
		enter(false) // one trial at a time
	}
	if _, refused := s.enter("another"); refused != nil {
		t.Error("another target is held up")
	}
	s.endTrial(pass{target: target}) // of a call that is no trial
	enter(false)
	time.Sleep(s.limit + 2*time.Minute)
	p := enter(true)
	s.endTrial(p) // a trial that ended without a result
	enter(true)
	s.succeeded(log, target)
	enter(true)
	if len(s.all()) != 0 || failed(0) != time.Second {
		t.Error("a success does not close the circuit")
	}
	if got := failed(time.Hour); got != time.Hour {
		t.Errorf("the publisher's own pause: %v", got)
	}
	if got := failed(100 * time.Hour); got != mostAfter {
		t.Errorf("a pause beyond the bound: %v", got)
	}
	if got := logged.String(); strings.Count(got, "level=WARN") != 2 || strings.Count(got, "level=INFO") != 1 ||
		strings.Count(got, "error=away") != 2 {
		t.Errorf("a record at each opening and closing, but:\n%s", got)
	}
}

// A trial whose call does not return is over with its time limit, as a failure.
func TestATrialThatHangsIsOverWithItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, _ := testCircuits(t)
		s.failed(log, "queue", errAway, 0)
		time.Sleep(time.Second)
		hangs, refused := s.enter("queue")
		if refused != nil {
			t.Fatal("no trial")
		}
		time.Sleep(s.limit)
		if _, refused := s.enter("queue"); refused == nil || refused.wait != 2*time.Second {
			t.Errorf("it counts as no failure: %+v", refused)
		}
		time.Sleep(2 * time.Second)
		if _, refused := s.enter("queue"); refused != nil {
			t.Errorf("no second trial: %+v", refused)
		}
		s.endTrial(hangs) // at last
		if _, refused := s.enter("queue"); refused == nil {
			t.Error("two trials at a time")
		}
	})
}

// A call waits a little for the broker's circuit; a success lets it through.
func TestASuccessWakesThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, _ := testCircuits(t)
		s.failed(log, broker, errAway, time.Minute)
		began := time.Now()
		if _, refused := s.enterBroker(t.Context()); refused == nil || time.Since(began) != brokerWait {
			t.Errorf("refused %v after %v, want after %v", refused, time.Since(began), brokerWait)
		}
		through := make(chan bool)
		go func() {
			_, refused := s.enterBroker(t.Context())
			through <- refused == nil
		}()
		synctest.Wait()
		s.succeeded(log, broker)
		if !<-through {
			t.Error("the waiting call did not get through")
		}
	})
}

// A backlog that is put off comes back bit by bit.
func TestWhatIsPutOffComesBackBitByBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, _ := testCircuits(t)
		s.failed(log, "queue", errAway, 0)
		var last time.Duration
		for range 3000 {
			_, refused := s.enter("queue")
			last = refused.wait
		}
		if want := time.Second + 2999*gap; last != want {
			t.Errorf("the last of 3,000 events waits %v, want %v", last, want)
		}
		for range mostGaps / gap {
			_, refused := s.enter("queue")
			last = refused.wait
		}
		if want := time.Second + mostGaps; last != want {
			t.Errorf("the last of many events waits %v, want %v", last, want)
		}
	})
}

// The number of circuits has a bound, and those that no event tries are forgotten.
func TestCircuitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log, logged := testCircuits(t)
		for i := range 2 * mostOpen {
			s.failed(log, fmt.Sprint("queue ", i), errAway, 0)
		}
		s.failed(log, broker, errAway, 0)
		if got := len(s.all()); got != mostOpen+1 {
			t.Errorf("%d circuits are open, want %d and the broker's", got, mostOpen)
		}
		if n := strings.Count(logged.String(), "WARN"); n != mostLogged+1 {
			t.Errorf("%d records, want %d", n, mostLogged+1)
		}
		s.succeeded(log, "queue 0")
		s.succeeded(log, fmt.Sprint("queue ", mostLogged))
		if n := strings.Count(logged.String(), "INFO"); n != 1 {
			t.Errorf("%d records of closed ones, want 1", n)
		}
		if _, refused := s.enter(fmt.Sprint("queue ", mostOpen)); refused != nil {
			t.Error("a target without a circuit is held up")
		}
		time.Sleep(forgetAfter + 2*time.Second)
		s.failed(log, "another", errAway, 0)
		if got := s.all(); len(got) != 1 || got[0].target != "another" {
			t.Errorf("%d circuits are open, want the new one", len(got))
		}
	})
}
