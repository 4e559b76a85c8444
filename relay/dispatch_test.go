package relay

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"maps"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox/internal/plan"
)

// refusing is a server that is down; it notes when it is dialled.
type refusing struct{ dials []time.Time }

func (s *refusing) Connect(context.Context) (driver.Conn, error) {
	s.dials = append(s.dials, time.Now())
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

func (s *refusing) Driver() driver.Driver { return nil }

// While the server is down one loop dials often enough to be back soon, with and without a lease
// that stands, and neither stops nor dials in a tight loop while other commits of the process wake
// the relay.
func TestADispatcherTriesAtAnEvenPaceDuringAnOutage(t *testing.T) {
	for _, leased := range []bool{true, false} {
		for name, wakeEach := range map[string]time.Duration{"nothing else": time.Hour, "wake-ups": time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				server := &refusing{}
				db := sql.OpenDB(server)
				defer db.Close()
				ctx, cancel := context.WithCancel(t.Context())
				x := newRun(ctx, runParams{db: db, log: slog.New(slog.DiscardHandler), woken: make(chan struct{}, 1), now: time.Now,
					settings: settings{config: Config{Schema: "outbox", Workers: 2, PollInterval: time.Second}}})
				defer x.close()
				d := x.dispatcher
				if leased {
					d.alive = func(time.Time) error { return nil }
				}
				stopped := make(chan struct{})
				go func() { d.run(); close(stopped) }()
				for begun := time.Now(); time.Since(begun) < time.Minute; {
					time.Sleep(min(wakeEach, time.Minute))
					x.wake()
				}
				cancel()
				<-stopped
				dials := server.dials[10:] // until the outage is known they follow at once
				var shortest, longest time.Duration = time.Hour, 0
				for i, at := range dials[1:] {
					gap := at.Sub(dials[i])
					shortest, longest = min(shortest, gap), max(longest, gap)
				}
				most := 400 * time.Millisecond
				if wakeEach == time.Millisecond { // each ends a pause
					most = 240 * time.Millisecond
				}
				if longest > most || shortest < 50*time.Millisecond {
					t.Errorf("lease %v, %s: %d tries in a minute, from %v to %v apart", leased, name, len(dials), shortest, longest)
				}
			})
		}
	}
}

// A loop that has failed often does not wait for its own pause once another has come through.
func TestAnAnswerToOneLoopEndsThePausesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relayRun{runParams: runParams{woken: make(chan struct{}, 1)}}
		failing, other := r.newPace(), r.newPace()
		for range 10 {
			failing.Try()
			failing.Fail()
		}
		other.Try()
		other.Fail()
		<-r.woken // for the failures
		waited := make(chan time.Duration)
		go func() {
			began := time.Now()
			select {
			case <-time.After(failing.Fail()):
			case <-failing.Answered:
			}
			waited <- time.Since(began)
		}()
		synctest.Wait()
		other.OK()
		if d := <-waited; d != 0 {
			t.Errorf("the loop waited for %v", d)
		}
		<-r.woken // the dispatcher hears of it too
		other.OK()
		select {
		case <-r.woken:
			t.Error("a loop that works wakes the dispatcher")
		default:
		}
	})
}

func TestAnAnswerOfWorkersByTypeThatCannotBeFollowedHarmsNothing(t *testing.T) {
	t.Parallel()
	load := []plan.Load{{Type: "A", Running: 3, Waiting: true, Priority: 1, Age: time.Second}, {Type: "B"}}
	for name, c := range map[string]struct {
		ask  func(context.Context, Load) map[string]int
		want map[string]int
		log  string
	}{
		"valid":          {func(context.Context, Load) map[string]int { return map[string]int{"A": 3, "B": 0} }, map[string]int{"A": 3, "B": 0}, ""},
		"none":           {func(context.Context, Load) map[string]int { return nil }, nil, ""},
		"another type":   {func(context.Context, Load) map[string]int { return map[string]int{"C": 1} }, map[string]int{"C": 1}, "task_type=C"},
		"panic":          {func(context.Context, Load) map[string]int { panic("it is broken") }, nil, "panic: it is broken"},
		"writes into it": {func(_ context.Context, l Load) map[string]int { l.Types[0].Type = "C"; return nil }, nil, ""},
		"all of the load": {func(_ context.Context, l Load) map[string]int {
			if l.Free != 4 || len(l.Types) != 2 || l.Types[0] != (TypeLoad{"A", 3, true, 1, time.Second}) {
				panic(l)
			}
			return nil
		}, nil, ""},
	} {
		var log bytes.Buffer
		b := bounds{ctx: t.Context(), ask: c.ask, types: map[string]bool{"A": true, "B": true}, log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 3 {
			if got := b.of(4, load); !maps.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", name, got, c.want)
			}
		}
		if got := strings.Count(log.String(), "Config.WorkersByType"); got != min(len(c.log), 1) || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: logged %q, want once %q", name, log.String(), c.log)
		}
	}
}

// The app may keep the map that it returned, and write into it.
func TestTheBoundsAreThoseOfTheCall(t *testing.T) {
	t.Parallel()
	kept, calls := map[string]int{}, 0
	b := bounds{ctx: t.Context(), ask: func(context.Context, Load) map[string]int {
		calls++
		kept["A"] = calls
		return kept
	}, types: map[string]bool{"A": true}, log: slog.New(slog.DiscardHandler)}
	first, second := b.of(4, nil), b.of(4, nil)
	kept["A"] = 7
	if first["A"] != 1 || second["A"] != 2 {
		t.Errorf("the bounds are %v and %v, want 1 and 2", first, second)
	}
}

func TestTheLatestNameOfAWakeUpCounts(t *testing.T) {
	t.Parallel()
	r := &relayRun{named: make(chan string, 1)}
	for _, task := range []string{"0 1 TX", "0 2 LEASED", ""} {
		r.wakeNamed(task)
	}
	if got := <-r.named; got != "" {
		t.Errorf("the wake-up names %q, want none, as the last one", got)
	}
}
