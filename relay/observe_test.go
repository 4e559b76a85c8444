package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// heard keeps what an observer was told.
type heard struct {
	mu      sync.Mutex
	claims  []relay.Claim
	ends    []relay.RunEnd
	changes []relay.Change
}

func (h *heard) observers() []relay.Observer {
	locked := func(f func()) {
		h.mu.Lock()
		defer h.mu.Unlock()
		f()
	}
	return []relay.Observer{{}, { // one that hears nothing is fine
		Claimed: func(_ context.Context, c relay.Claim) { locked(func() { h.claims = append(h.claims, c) }) },
		Ended:   func(_ context.Context, e relay.RunEnd) { locked(func() { h.ends = append(h.ends, e) }) },
		Changed: func(_ context.Context, c relay.Change) { locked(func() { h.changes = append(h.changes, c) }) },
	}}
}

// What an observer gets is its own: it may keep it, and write into it.
func TestObserversShareNothing(t *testing.T) {
	t.Parallel()
	db, h := newDatabase(t), &heard{}
	spoils := relay.Observer{
		Ended:   func(_ context.Context, e relay.RunEnd) { clear(e.Tasks) },
		Changed: func(_ context.Context, c relay.Change) { clear(c.Types) },
	}
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return nil })
	db.Enqueue(t, "BATCH", 3)
	once(t, db, reg, relay.Config{Workers: 1, Observers: slices.Concat([]relay.Observer{spoils}, h.observers(), []relay.Observer{spoils})})
	if got := h.outcomes(); got["BATCH"] != "done done done" {
		t.Errorf("the outcomes are %v", got)
	}
	for _, c := range h.changes {
		if !slices.Equal(c.Types, []string{"BATCH"}) {
			t.Errorf("%s: the types are %q", c.Event, c.Types)
		}
	}
}

// outcomes are those of each type's tasks in the order in which they were told.
func (h *heard) outcomes() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]string{}
	for _, e := range h.ends {
		for _, task := range e.Tasks {
			one := string(task.Outcome)
			if task.Reason != "" {
				one += ":" + string(task.Reason)
			}
			out[e.Type] = strings.TrimSpace(out[e.Type] + " " + one)
		}
	}
	return out
}

func (h *heard) events() (out []relay.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.changes {
		out = append(out, c.Event)
	}
	return out
}

// balanced checks that each task that was claimed has ended once.
func (h *heard) balanced(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	claimed, ended := map[string]int{}, map[string]int{}
	for _, c := range h.claims {
		claimed[c.Type+" "+string(c.Kind)] += c.Tasks
		if c.Start.IsZero() || c.Duration <= 0 || c.Duration > time.Hour {
			t.Errorf("a claim of %s began %v and took %v", c.Type, c.Start, c.Duration)
		}
	}
	for _, e := range h.ends {
		ended[e.Type+" "+string(e.Kind)] += len(e.Tasks)
		if (e.Duration > 0) == e.Start.IsZero() {
			t.Errorf("a run of %s was called %v and took %v", e.Type, e.Start, e.Duration)
		}
	}
	if fmt.Sprint(claimed) != fmt.Sprint(ended) || len(claimed) == 0 {
		t.Errorf("claimed\n%v, ended\n%v", claimed, ended)
	}
}

// An exporter finds what it needs in the context that the app started the relay with, also after
// that has ended.
func TestCallbacksGetTheValuesOfTheRunsContext(t *testing.T) {
	t.Parallel()
	db, key := newDatabase(t), new(int)
	ctx, stop := context.WithCancel(context.WithValue(t.Context(), key, "of the app"))
	defer stop()
	var observed, asked atomic.Int32
	var ofRelay atomic.Pointer[context.Context]
	observe := func(ctx context.Context) {
		if observed.Add(1); ctx.Value(key) != "of the app" || ctx.Err() != nil || ctx.Done() != nil {
			t.Errorf("an observer got %v, which ended: %v", ctx, ctx.Err())
		}
	}
	stopped := false
	r, err := relay.New(db.DB, all(), relay.Config{
		WorkersByType: func(ctx context.Context, _ relay.Load) map[string]int {
			if asked.Add(1); ctx.Value(key) != "of the app" {
				t.Errorf("WorkersByType got %v", ctx)
			}
			ofRelay.Store(&ctx)
			return nil
		},
		Observers: []relay.Observer{{
			Claimed: func(ctx context.Context, _ relay.Claim) { observe(ctx) },
			Ended:   func(ctx context.Context, _ relay.RunEnd) { observe(ctx); stop() },
			Changed: func(ctx context.Context, c relay.Change) {
				observe(ctx)
				stopped = c.Event == relay.EventStopped
			},
		}},
	})
	noErr(t, err)
	db.Enqueue(t, "TX", 1)
	noErr(t, r.Run(ctx))
	if observed.Load() < 4 || !stopped || asked.Load() == 0 {
		t.Errorf("observers were called %d times, WorkersByType %d times", observed.Load(), asked.Load())
	}
	if c := ofRelay.Load(); c == nil || (*c).Err() == nil {
		t.Error("the context of WorkersByType has not ended with the relay")
	}
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("outcomes\n%v, want\n%v", got, want)
	}
}

func TestObserversHearWhatBecomesOfEachTaskOfEachKind(t *testing.T) {
	boom := errors.New("boom")
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, want := handlers.New(), map[string]string{}
		for name, c := range map[string]struct {
			f    func(*outbox.Task[payload]) error
			want string
		}{
			"NIL":     {func(*outbox.Task[payload]) error { return nil }, "done"},
			"DISCARD": {func(*outbox.Task[payload]) error { return handlers.Discard(boom) }, "discarded"},
			"AGAIN": {func(task *outbox.Task[payload]) error {
				if task.Iterations == 0 {
					return handlers.RunAgain(0)
				}
				return nil
			}, "run_again done"},
			"ERROR":  {func(*outbox.Task[payload]) error { return boom }, "failed failed dead:attempts"},
			"PANIC":  {func(*outbox.Task[payload]) error { panic("boom") }, "failed failed dead:attempts"},
			"EXIT":   {func(*outbox.Task[payload]) error { runtime.Goexit(); return nil }, "failed failed dead:attempts"},
			"LATER":  {func(*outbox.Task[payload]) error { return handlers.RetryAfter(time.Hour, boom) }, "throttled"},
			"SNOOZE": {func(*outbox.Task[payload]) error { return handlers.Snooze(time.Hour) }, "snoozed"},
			"DEAD":   {func(*outbox.Task[payload]) error { return handlers.Dead(boom) }, "dead:handler"},
		} {
			kinds[kind](reg, name, c.f, handlers.MaxAttempts(3), relaytest.RetrySoon())
			want[name] = c.want
			db.Do(t, `INSERT INTO outbox.task (task_type, payload, run_at) VALUES ($1, '{"n": 1}', now() - interval '1 hour')`,
				name)
		}
		h := &heard{}
		began := time.Now()
		once(t, db, reg, relay.Config{Workers: 4, Observers: h.observers()})
		same(t, h.outcomes(), want)
		h.balanced(t)
		attempts := ""
		for _, e := range h.ends {
			if e.Start.Before(began) {
				t.Errorf("%s was called %v, want after %v", e.Type, e.Start, began)
			}
			task := e.Tasks[0]
			if e.Type == "ERROR" {
				attempts += fmt.Sprint(task.Attempt)
			}
			if first := task.Attempt == 1 && task.Outcome != relay.OutcomeDone; first &&
				task.Waited.Truncate(time.Hour) != time.Hour || !first && task.Attempt > 1 && task.Waited > time.Hour/2 {
				t.Errorf("%s waited %v since it was due, in attempt %d", e.Type, task.Waited, task.Attempt)
			}
		}
		if attempts != "123" {
			t.Errorf("attempts %s, want 1, 2, 3", attempts)
		}
		if got := h.events(); !slices.Equal(got, []relay.Event{relay.EventStarted, relay.EventStopped}) ||
			len(h.changes[0].Types) != len(want) {
			t.Errorf("it heard of %v", h.changes)
		}
	})
}

func TestObserversHearOfABatchTaskByTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	some, whole := outbox.NewTaskType[payload]("SOME"), outbox.NewTaskType[payload]("WHOLE")
	handlers.Batch(reg, some, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		return handlers.BatchResult{
			tasks[0].ID: errors.New("boom"), tasks[1].ID: handlers.Dead(errors.New("boom")), tasks[2].ID: handlers.Discard(errors.New("boom")),
			tasks[3].ID: handlers.Snooze(time.Hour), tasks[4].ID: handlers.RunAgain(time.Hour)}
	}, handlers.Backoff(constant(time.Hour)))
	handlers.Batch(reg, whole, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		if len(tasks) > 1 || tasks[0].Payload.N == 2 {
			return errors.New("boom")
		}
		return nil
	}, handlers.MaxAttempts(1))
	db.Enqueue(t, "SOME", 6)
	db.Enqueue(t, "WHOLE", 3)
	h := &heard{}
	once(t, db, reg, relay.Config{Workers: 1, Observers: h.observers()}) // another worker may claim what is to run alone
	same(t, h.outcomes(), map[string]string{
		"SOME":  "failed dead:handler discarded snoozed run_again done",
		"WHOLE": "released released released done dead:attempts done",
	})
	h.balanced(t)
}

func TestObserversHearOfCompletedTasksAndOfThoseThatMayNotRun(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg, h := newDatabase(t), handlers.New(), &heard{}
	three := handlers.MaxAttempts(3)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		err := task.Complete(ctx, func(*sql.Tx) error {
			if task.Payload.N == 1 {
				return handlers.RunAgain(time.Hour)
			}
			return nil
		})
		return errors.Join(err, errors.New("it does not matter any more"))
	}, three)
	registerTx(reg, typeTx, txEffect, three)
	registerTx(reg, outbox.NewTaskType[payload]("OWN"),
		func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			_, err := tx.ExecContext(ctx, "COMMIT")
			if task.Payload.N == 1 {
				return errors.Join(err, errors.New("boom"))
			}
			return err
		})
	db.Enqueue(t, "LEASED", 2)
	db.Enqueue(t, "OWN", 2)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, attempt)
		VALUES ('TX', '{"n": 3}', 3), ('LEASED', '{"n": 3}', 3)`)
	once(t, db, reg, relay.Config{Workers: 1, Observers: h.observers()})
	same(t, h.outcomes(), map[string]string{"LEASED": "run_again done dead:attempts", "TX": "dead:attempts",
		"OWN": "dead:committed done"})
	h.balanced(t)
	for _, e := range h.ends {
		if e.Tasks[0].Reason == outbox.ReasonAttempts && (!e.Start.IsZero() || e.Tasks[0].Attempt != 3) {
			t.Errorf("of a task that had its attempts it heard %+v", e)
		}
	}
}

func TestEachOutcomeHasAConstant(t *testing.T) {
	source, err := os.ReadFile("observe.go")
	must(err)
	var got []string
	for _, c := range regexp.MustCompile(`Outcome = "(\w+)"`).FindAllSubmatch(source, -1) {
		got = append(got, string(c[1]))
	}
	if want := decide.Outcomes(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// held registers handlers of each kind that tell that they have begun and wait for the end of their
// context.
func held(begun chan<- int64) *handlers.Registry {
	reg := handlers.New()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
			begun <- task.ID
			<-ctx.Done()
			return ctx.Err()
		})
	}
	return reg
}

func TestObserversHearOfRunsThatAreCanceledDrainedOrLost(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		do   func(t *testing.T, db *database, h *heard, ids []int64)
		want map[string]string
	}{
		"drained": {func(*testing.T, *database, *heard, []int64) {},
			map[string]string{"TX": "drained", "BATCH": "drained", "LEASED": "drained"}},
		"canceled": {func(t *testing.T, db *database, _ *heard, ids []int64) {
			for _, id := range ids {
				db.cancel(t, int(id))
			}
			db.gone(t)
		}, map[string]string{"TX": "canceled", "BATCH": "canceled", "LEASED": "canceled"}},
		"lost": {func(t *testing.T, db *database, h *heard, _ []int64) {
			db.takenOver(t)
			eventually(t, 20*time.Second, "the lease is lost", func() bool { return h.outcomes()["LEASED"] != "" })
		}, map[string]string{"TX": "drained", "BATCH": "drained", "LEASED": "lease_lost"}},
	} {
		tests[name] = func(t *testing.T) {
			db, h := newDatabase(t), &heard{}
			begun := make(chan int64, 10)
			db.enqueueEach(t, 1)
			r := run(t, db, held(begun), relay.Config{Workers: 4, Observers: h.observers(), DrainTimeout: 50 * time.Millisecond})
			c.do(t, db, h, []int64{<-begun, <-begun, <-begun})
			r.Stop()
			got := h.outcomes()
			for kind, all := range got { // a claim that was on its way may get what was given back, and gives it back
				if each := slices.Compact(strings.Fields(all)); slices.Equal(each, []string{"drained"}) {
					got[kind] = each[0]
				}
			}
			same(t, got, c.want)
			h.balanced(t)
		}
	}
	relaytest.Together(t, tests)
}

func TestObserversHearOfFailuresOfTheDatabaseAsNoAttempt(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg, h := newDatabase(t), handlers.New(), &heard{}
	later := handlers.Backoff(constant(time.Hour))
	const kill = `SELECT pg_terminate_backend(pg_backend_pid())`
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, kill)
		return err
	}, later)
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, _ []*outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, kill)
		return err
	}, later)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "BATCH", 1)
	run(t, db, reg, relay.Config{Workers: 4, Observers: h.observers()})
	eventually(t, 20*time.Second, "both runs have ended", func() bool {
		got := h.outcomes()
		return strings.Contains(got["TX"], "infrastructure") && strings.Contains(got["BATCH"], "infrastructure")
	})
	for kind, got := range h.outcomes() { // it may have been claimed before the first run was put off
		for _, one := range strings.Fields(got) {
			if one != "infrastructure" && one != "released" {
				t.Errorf("%s: %s", kind, got)
			}
		}
	}
	db.want(t, 0, "attempts", `SELECT max(attempt) FROM outbox.task`)
}

// The session's clock is an hour ahead, by a function that is found before PostgreSQL's.
func TestTheWaitThatObserversHearOfIsByPostgreSQLsClock(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE SCHEMA ahead; CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT
		pg_catalog.clock_timestamp() + interval '1 hour' $$`)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "LEASED", 1)
	h := &heard{}
	once(t, direct(t, with(t, db.URL, "search_path", "ahead,pg_catalog,public")), all(),
		relay.Config{Observers: h.observers()})
	if len(h.ends) != 2 {
		t.Fatalf("it heard of %v", h.ends)
	}
	for _, e := range h.ends {
		if waited := e.Tasks[0].Waited; waited < time.Hour || waited > time.Hour+time.Minute {
			t.Errorf("%s waited %v, want an hour by that clock", e.Type, waited)
		}
	}
}
