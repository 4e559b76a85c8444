package decide

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// TestDecide has all results of handlers, in all states in which a run can end, for each Kind: what
// becomes of the handler's work, and of its task. A task has 3 attempts; this is its second.
//
// Invariants I3 and I5.
func TestDecide(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	results := []struct {
		name string
		err  error
	}{
		{"nil", nil},
		{"error", failed},
		{"retry after", handlers.RetryAfter(time.Minute, failed)},
		{"snooze", handlers.Snooze(time.Minute)},
		{"discard", handlers.Discard(failed)},
		{"dead", handlers.Dead(failed)},
		{"again", handlers.RunAgain(time.Minute)},
	}
	states := []struct {
		name string
		set  func(*Run, *store.Row)
	}{
		{"as it is", func(*Run, *store.Row) {}},
		{"last attempt", func(_ *Run, r *store.Row) { r.Attempt++ }},
		{"backoff stops", func(e *Run, _ *store.Row) { e.Backoff = func(int, error) (time.Duration, bool) { return 0, false } }},
		{"overran", func(e *Run, _ *store.Row) { e.Result.Overran = true }},
		{"canceled", func(e *Run, r *store.Row) { e.Result.Canceled, e.Canceled = true, []int64{r.ID} }},
		{"drained", func(e *Run, _ *store.Row) { e.Result.Drained = true }},
		{"lease lost", func(e *Run, _ *store.Row) { e.Result.LeaseLost = true }},
		{"prevented", func(e *Run, _ *store.Row) { e.Prevented = true }},
		{"prevented, overran", func(e *Run, _ *store.Row) { e.Prevented, e.Result.Overran = true, true }},
	}
	// For each state what each result gives. Of Tx and Batch: the work, and the outcome; a state that
	// only Leased handlers have is left out.
	want := map[string]map[outbox.Kind][]string{
		"as it is": {
			outbox.KindTx:     {"keep done", "undo failed 2", "undo throttled 1", "undo snoozed 1", "keep discarded", "undo dead 2", "keep run_again 0"},
			outbox.KindLeased: {"done", "failed 2", "throttled 1", "snoozed 1", "discarded", "dead 2", "run_again 0"},
		},
		"last attempt": {
			outbox.KindTx:     {"keep done", "undo dead 3", "undo throttled 2", "undo snoozed 2", "keep discarded", "undo dead 3", "keep run_again 0"},
			outbox.KindLeased: {"done", "dead 3", "throttled 2", "snoozed 2", "discarded", "dead 3", "run_again 0"},
		},
		"backoff stops": {
			outbox.KindTx:     {"keep done", "undo dead 2", "undo throttled 1", "undo snoozed 1", "keep discarded", "undo dead 2", "keep run_again 0"},
			outbox.KindLeased: {"done", "dead 2", "throttled 1", "snoozed 1", "discarded", "dead 2", "run_again 0"},
		},
		"overran": {
			outbox.KindTx:     {"keep done", "undo failed 2", "undo throttled 1", "undo snoozed 1", "keep discarded", "undo dead 2", "keep run_again 0"},
			outbox.KindLeased: {"done", "failed 2", "throttled 1", "snoozed 1", "discarded", "dead 2", "run_again 0"},
		},
		"canceled": {
			outbox.KindTx:     {"keep done", "cancel", "cancel", "cancel", "keep discarded", "cancel", "keep canceled"},
			outbox.KindLeased: {"done", "canceled", "canceled", "canceled", "discarded", "canceled", "canceled"},
		},
		"drained": {
			outbox.KindTx:     {"keep done", "give back", "give back", "give back", "keep discarded", "give back", "keep run_again 0"},
			outbox.KindLeased: {"done", "drained 1", "drained 1", "drained 1", "discarded", "drained 1", "run_again 0"},
		},
		"lease lost": {
			outbox.KindLeased: {"done", "lease_lost 1", "lease_lost 1", "lease_lost 1", "discarded", "lease_lost 1", "run_again 0"},
		},
		"prevented": {
			outbox.KindLeased: {"done", "infrastructure 1", "infrastructure 1", "snoozed 1", "discarded", "dead 2", "run_again 0"},
		},
		"prevented, overran": {
			outbox.KindLeased: {"done", "failed 2", "throttled 1", "snoozed 1", "discarded", "dead 2", "run_again 0"},
		},
	}
	for _, kind := range []outbox.Kind{outbox.KindTx, outbox.KindBatch, outbox.KindLeased} {
		for _, state := range states {
			wanted := want[state.name][kind]
			if kind == outbox.KindBatch { // of one task
				wanted = want[state.name][outbox.KindTx]
			}
			for i, given := range results {
				if wanted == nil {
					continue
				}
				r := &store.Row{ID: 7, Attempt: 1, Max: 3}
				e := Run{Kind: kind, Result: call.Result{Err: given.err}, Backoff: func(int, error) (time.Duration, bool) { return time.Second, true }}
				state.set(&e, r)
				decided, verdicts := e.Tasks([]*store.Row{r})
				if got := describe(kind, decided, verdicts); got != wanted[i] {
					t.Errorf("%v, %s, %s: %q, want %q", kind, state.name, given.name, got, wanted[i])
				}
			}
		}
	}
}

func describe(kind outbox.Kind, decided Work, verdicts []Verdict) string {
	s := ""
	if kind != outbox.KindLeased {
		s = [...]string{"keep ", "undo ", "split ", "cancel ", "give back "}[decided]
	}
	if verdicts == nil && decided == Keep {
		return s + "done"
	}
	for _, v := range verdicts {
		s += v.Outcome.String()
		if !v.Outcome.Gone() {
			s += fmt.Sprint(" ", v.Change.Attempt)
		}
		s += " "
	}
	return s[:len(s)-1]
}

// TestDecideForABatch: a BatchResult keeps the work and fails some tasks; any other plain failure has
// the tasks run one by one; a control result holds for all of them.
func TestDecideForABatch(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	some := handlers.BatchResult{1: failed, 2: handlers.Snooze(time.Minute), 3: handlers.Discard(failed), 4: nil}
	waits := handlers.BatchResult{1: handlers.RetryAfter(time.Minute, failed), 2: failed}
	for _, c := range []struct {
		name string
		end  Run
		want string
	}{
		{"nil", Run{}, "keep done"},
		{"some", Run{Result: call.Result{Err: some}}, "keep failed 1 snoozed 0 discarded done"},
		{"some, throttled", Run{Result: call.Result{Err: waits}}, "keep throttled 0 failed 1 done done"},
		{"some, two of them canceled", Run{Result: call.Result{Err: some, Canceled: true}, Canceled: []int64{1, 4}}, "keep canceled snoozed 0 discarded done"},
		{"some, drained", Run{Result: call.Result{Err: some, Drained: true}}, "keep drained 0 drained 0 discarded done"},
		{"error", Run{Result: call.Result{Err: failed}}, "split"},
		{"error, drained", Run{Result: call.Result{Err: failed, Drained: true}}, "give back"},
		{"error, canceled", Run{Result: call.Result{Err: failed, Canceled: true}, Canceled: []int64{2}}, "cancel"},
		{"retry after", Run{Result: call.Result{Err: handlers.RetryAfter(time.Minute, failed)}}, "undo throttled 0 throttled 0 throttled 0 throttled 0"},
		{"retry after four days", Run{Result: call.Result{Err: handlers.RetryAfter(96*time.Hour, failed)}}, "undo throttled 0 throttled 0 throttled 0 throttled 0"},
		{"retry after no time", Run{Result: call.Result{Err: handlers.RetryAfter(0, failed)}}, "split"},
		{"dead", Run{Result: call.Result{Err: handlers.Dead(failed)}}, "undo dead 1 dead 1 dead 1 dead 1"},
		{"again", Run{Result: call.Result{Err: handlers.RunAgain(0)}}, "keep run_again 0 run_again 0 run_again 0 run_again 0"},
	} {
		c.end.Kind, c.end.Backoff = outbox.KindBatch, func(int, error) (time.Duration, bool) { return time.Second, true }
		var rows []*store.Row
		for id := range int64(4) {
			rows = append(rows, &store.Row{ID: id + 1, Max: 3})
		}
		decided, verdicts := c.end.Tasks(rows)
		if got := describe(outbox.KindBatch, decided, verdicts); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestMaxElapsed: the time counts from the first failure since the last redrive to the next attempt, and not from when the task was due.
func TestMaxElapsed(t *testing.T) {
	t.Parallel()
	const begun = "2026-11-26T12:00:00Z"
	at, err := time.Parse(time.RFC3339, begun)
	if err != nil {
		t.Fatal(err)
	}
	failed := `{"event": "failed", "at": "` + begun + `"}`
	throttled := `{"event": "throttled", "times": 7, "last": "2026-11-27T12:00:00Z", "at": "` + begun + `"}`
	old := `{"event": "failed", "at": "2026-11-01T12:00:00Z"}, {"event": "dead", "at": "2026-11-02T12:00:00Z"}`
	for _, c := range []struct {
		name       string
		timeline   string
		after      time.Duration // of the first failure, by PostgreSQL's clock, as the handler is called
		err        error
		maxElapsed time.Duration
		want       Outcome
	}{
		{"without a limit", failed, 1000 * time.Hour, errors.New("failed"), 0, Failed},
		{"the first failure", "", 0, errors.New("failed"), time.Hour, Failed},
		{"the first failure, and a longer wait", "", 0, errors.New("failed"), 30*time.Second - 1, Dead},
		{"in time", failed, 58 * time.Minute, errors.New("failed"), time.Hour, Failed},
		{"too late", failed, 60 * time.Minute, errors.New("failed"), time.Hour, Dead},
		{"too late as the handler took its time", failed, 59*time.Minute + time.Second, errors.New("failed"), time.Hour, Dead},
		{"as the handler asks", failed, 0, handlers.RetryAfter(2*time.Hour, errors.New("failed")), time.Hour, Throttled},
		{"a wait that is asked for", failed, 58 * time.Minute, handlers.RetryAfter(time.Minute, errors.New("busy")), time.Hour, Throttled},
		{"a wait beyond the time", failed, 59 * time.Minute, handlers.RetryAfter(time.Minute, errors.New("busy")), time.Hour, Throttled},
		{"a wait after the time", failed, 60 * time.Minute, handlers.RetryAfter(time.Minute, errors.New("busy")), time.Hour, Dead},
		{"a wait within three days", failed, 71 * time.Hour, handlers.RetryAfter(50*time.Minute, errors.New("busy")), 0, Throttled},
		{"a wait beyond three days", failed, 71 * time.Hour, handlers.RetryAfter(time.Hour, errors.New("busy")), 0, Throttled},
		{"a wait beyond three days, of a time that is longer", failed, 96 * time.Hour, handlers.RetryAfter(time.Hour, errors.New("busy")), 120 * time.Hour, Throttled},
		{"throttled three days ago", throttled, 73 * time.Hour, handlers.RetryAfter(time.Hour, errors.New("busy")), 0, Failed},
		{"throttled before the redrive", `{"event": "throttled", "at": "2026-11-01T12:00:00Z"}, {"event": "redriven", "at": "2026-11-25T12:00:00Z"}`, 0,
			handlers.RetryAfter(time.Hour, errors.New("busy")), 0, Throttled},
		{"a snooze is no failure", failed, 2 * time.Hour, handlers.Snooze(time.Hour), time.Hour, Snoozed},
		{"redriven since", old + `, {"event": "redriven", "at": "2026-11-25T12:00:00Z"}, ` + failed, 30 * time.Minute, errors.New("failed"), time.Hour, Failed},
		{"redriven, and the first failure since", old + `, {"event": "redriven", "at": "2026-11-25T12:00:00Z"}`, 0, errors.New("failed"), time.Hour, Failed},
		{"replaced, and the first failure since", old + `, {"event": "replaced", "at": "2026-11-25T12:00:00Z"}`, 0, errors.New("failed"), time.Hour, Failed},
	} {
		r := &store.Row{}
		if _, err := r.FromText(fmt.Sprintf("7\x1f0\x1f1\x1f%d\x1f\x1f1\x1f{\"max_attempts\": 100, \"timeline\": [%s]}\x1f{}",
			at.UnixMicro(), c.timeline)); err != nil {
			t.Fatal(err)
		}
		called := time.Now()
		r.NoteTime(at.Add(c.after).UnixMicro())
		e := Run{Kind: outbox.KindLeased, Result: call.Result{Err: c.err}, Ended: called.Add(30 * time.Second), MaxElapsed: c.maxElapsed,
			Backoff: func(int, error) (time.Duration, bool) { return 30 * time.Second, true }}
		_, verdicts := e.Tasks([]*store.Row{r})
		if got := verdicts[0]; got.Outcome != c.want || (c.want == Dead) != (got.Change.Reason == outbox.ReasonHandler) {
			t.Errorf("%s: %v %+v, want %v", c.name, got.Outcome, got.Change, c.want)
		}
	}
}

// A wait that the other side asks for is at most a tenth longer, also for the attempts after the
// retry span. It is shorter only where it is cut, which its error says. Tasks that were refused
// together come back apart.
func TestWaitsThatAreAskedForAreSpread(t *testing.T) {
	t.Parallel()
	const year = 8760 * time.Hour
	for _, c := range []struct {
		asked, maxElapsed, since time.Duration // since the first failure; 0: this is the first
		want                     string
		least, most              time.Duration
	}{
		{time.Minute, 0, 0, "throttled", time.Minute, 66 * time.Second},
		{time.Minute, 0, 80 * time.Hour, "failed", time.Minute, 66 * time.Second},
		{72 * time.Hour, 0, 0, "throttled", 72 * time.Hour, 72 * time.Hour},
		{year, 0, 0, "throttled, cut to 72h0m0s", 72 * time.Hour, 72 * time.Hour},
		{year, 0, 70 * time.Hour, "throttled, cut to 2h0m0s", 2 * time.Hour, 2 * time.Hour},
		{year, 0, 72 * time.Hour, "failed, cut to 24h0m0s", 24 * time.Hour, 24 * time.Hour},
		{year, 100 * time.Hour, 90 * time.Hour, "throttled, cut to 10h0m0s", 10 * time.Hour, 10 * time.Hour},
		{year, time.Hour, 0, "throttled, cut to 1h0m0s", time.Hour, time.Hour},
		{year, time.Hour, time.Hour, "dead", 0, 24 * time.Hour},
		{math.MaxInt64, 0, -9 * time.Hour, "throttled, cut to 72h0m0s", 72 * time.Hour, 72 * time.Hour}, // clocks differ
	} {
		seen, now := map[time.Duration]bool{}, time.Now()
		for i := range 100 {
			r := &store.Row{}
			first := ""
			if c.since != 0 {
				first = fmt.Sprintf(`{"event": "failed", "at": %q}`, now.Add(-c.since).Format(time.RFC3339Nano))
			}
			if _, err := r.FromText(fmt.Sprintf("7\x1f0\x1f1\x1f%d\x1f\x1f1\x1f{\"max_attempts\": 100, \"timeline\": [%s]}\x1f{}",
				now.UnixMicro(), first)); err != nil {
				t.Fatal(err)
			}
			var failure error
			call.Guarded(func() error { return handlers.RetryAfter(c.asked, os.ErrNotExist) }, func(err error) { failure = err })
			e := Run{Kind: outbox.KindLeased, Result: call.Result{Err: failure}, Ended: now, MaxElapsed: c.maxElapsed, NoJitter: i == 0}
			_, verdicts := e.Tasks([]*store.Row{r})
			got := verdicts[0].Change
			said := verdicts[0].Outcome.String()
			if _, cut, is := strings.Cut(got.Err.Error(), "file does not exist (the wait is "); is {
				said += ", " + strings.TrimSuffix(cut, ")")
			}
			if said != c.want || got.Wait < c.least || got.Wait > c.most || !errors.Is(call.Original(got.Err), os.ErrNotExist) {
				t.Fatalf("%+v: %s after %v: %v", c, said, got.Wait, got.Err)
			}
			if i == 0 && c.least < c.most && c.least > 0 && got.Wait != c.asked {
				t.Errorf("%+v: with NoJitter %v", c, got.Wait)
			}
			seen[got.Wait] = true
		}
		if c.least < c.most && c.least > 0 && len(seen) < 2 {
			t.Errorf("%+v: 100 tasks come back after %v", c, seen)
		}
	}
}

// The app's backoff gets the error as the handler returned it, whose methods work.
func TestTheBackoffGetsTheAttemptAndTheHandlersError(t *testing.T) {
	t.Parallel()
	var failure error
	call.Guarded(func() error { return fmt.Errorf("sent: %w", os.ErrNotExist) }, func(err error) { failure = err })
	var attempts []int
	h := &handler.Handler{Kind: outbox.KindTx, Schedule: func(attempt int, err error) (time.Duration, bool) {
		attempts = append(attempts, attempt)
		return time.Minute, errors.Is(err, os.ErrNotExist)
	}}
	r := &store.Row{ID: 7, Attempt: 1, Max: 3}
	_, verdicts := NewRun(slog.Default(), h, call.Result{Err: failure}).Tasks([]*store.Row{r})
	if verdicts[0].Outcome != Failed || !slices.Equal(attempts, []int{2}) {
		t.Errorf("%v after attempts %v, want a retry after attempt 2", verdicts[0].Outcome, attempts)
	}
}

// A backoff that refuses to go on is no reason to run a task again and again at once.
func TestARunThatIsNoAttemptWaitsThoughTheBackoffStops(t *testing.T) {
	t.Parallel()
	h := &handler.Handler{Kind: outbox.KindLeased, Schedule: func(int, error) (time.Duration, bool) { return 0, false }}
	failed := errors.New("failed")
	e := NewRun(slog.Default(), h, call.Result{Err: failed})
	e.Prevented = true
	_, verdicts := e.Tasks([]*store.Row{{ID: 7, Attempt: 2, Max: 3}})
	if got := verdicts[0]; got.Outcome != Infrastructure || got.Change.Wait != time.Second {
		t.Errorf("%v after %v, want a wait of 1 s", got.Outcome, got.Change.Wait)
	}
	if got := LostWait(slog.Default(), h, failed); got != time.Second {
		t.Errorf("a lost connection waits %v, want 1 s", got)
	}
}

// A task with attempts left may run, after lost runs too.
func TestATaskIsBuriedOnceItsAttemptsWereBegun(t *testing.T) {
	t.Parallel()
	const (
		begun = "dead attempts 3: relay: all 3 attempts were begun before"
		died  = "dead attempts 3: relay: the process died while it ran the task, 2 times"
		lost  = "relay: 10 runs of the task lost their connection to PostgreSQL"
	)
	for name, tt := range map[string]struct {
		row     store.Row
		earlier store.Judgement
		want    string
	}{
		"fresh":                  {store.Row{Attempt: 2, Max: 3}, store.Fresh, ""},
		"a suspect":              {store.Row{Attempt: 1, Lost: 1, Max: 3}, store.Suspect, ""},
		"all were begun":         {store.Row{Attempt: 3, Max: 3}, store.Fresh, begun},
		"its maximum was lower":  {store.Row{Attempt: 5, Max: 3}, store.Fresh, begun},
		"all were lost":          {store.Row{Attempt: 1, Lost: 2, Max: 3}, store.DeadAttempts, died},
		"connections were lost":  {store.Row{Attempt: 1, Lost: 1, Max: 5}, store.DeadLostConns, "dead lost_connections 2: " + lost},
		"lost, and none is left": {store.Row{Attempt: 2, Lost: 2, Max: 3}, store.DeadLostConns, "dead lost_connections 3: " + lost},
	} {
		v, buried := Buried(&handler.Handler{}, &tt.row, tt.earlier)
		got := ""
		if buried {
			got = fmt.Sprintf("%v %s %d: %v", v.Outcome, v.Change.Reason, v.Change.Attempt, v.Change.Err)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// What has begun, by an attempt, an iteration or a run that was lost, does not expire.
func TestATaskExpiresOnlyBeforeItHasBegun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		attempt int
		rest    string
		earlier store.Judgement
		want    string
	}{
		"late": {0, `{"past_expiry": true}`, store.Fresh,
			"dead expired 0: relay: the task expired before it had begun"},
		"in time":        {0, `{"past_expiry": false}`, store.Fresh, ""},
		"a retry":        {1, `{"past_expiry": true}`, store.Fresh, ""},
		"an iteration":   {0, `{"past_expiry": true, "iterations": 1}`, store.Fresh, ""},
		"a run was lost": {0, `{"past_expiry": true}`, store.Suspect, ""},
	} {
		r := &store.Row{Max: 3}
		if _, err := r.FromText(fmt.Sprintf("7\x1f0\x1f%d\x1f1\x1f\x1f1\x1f%s\x1f{}", tt.attempt, tt.rest)); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*handler.Handler{{}, {DiscardExpired: true}} {
			v, buried := Buried(h, r, tt.earlier)
			got := ""
			if buried {
				got = fmt.Sprintf("%v %s %d: %v", v.Outcome, v.Change.Reason, v.Change.Attempt, v.Change.Err)
			}
			want := tt.want
			if h.DiscardExpired && want != "" {
				want = "expired  0: <nil>"
			}
			if got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}
