package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/await"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// progressOf is how far tools show a task to be.
func progressOf(t testing.TB, db *database, id int64) string {
	t.Helper()
	task, err := relaytest.Admin(t, db.DB).Task(t.Context(), id)
	if err != nil || task.Progress == nil {
		return fmt.Sprint(err)
	}
	if task.Progress.At.Before(task.CreatedAt) {
		t.Errorf("the progress is older than its task: %v", task.Progress.At)
	}
	return fmt.Sprint(task.Progress.Fraction, " ", task.Progress.Message)
}

// While a handler runs, tools show the latest that it told, with one write for many calls. It is gone
// with the run, also where that failed, and with its relay.
func TestProgressIsShownWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tx", "group", "batch", "leased"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onEachDriver(t, func(t *testing.T, db *database) {
				reg, told, release := handlers.New(), make(chan error), make(chan error)
				var late *outbox.Task[payload]
				registerKind(reg, kind, "LONG", 3, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
					late = tasks[0]
					for n := range 1000 {
						if err := late.SetProgress(ctx, float64(n)/1000, fmt.Sprint(n, " of 1000")); err != nil {
							return err
						}
					}
					told <- late.SetProgress(ctx, 0.5, "500 of 1000")
					return <-release
				}, handlers.Backoff(constant(time.Hour)))
				run(t, db, reg, relay.Config{})
				id := enqueueSpecs(t, db, outbox.TaskSpec{Type: "LONG", Payload: payload{}})[0]
				must(<-told)
				relaytest.Eventually(t, time.Minute, "its progress is shown", func() bool {
					return progressOf(t, db, id) == "0.5 500 of 1000"
				})
				release <- errors.New("boom")
				relaytest.Eventually(t, time.Minute, "it is gone with the run", func() bool {
					return progressOf(t, db, id) == "<nil>"
				})
				db.becomes(t, time.Minute, 0, "rows with progress", `SELECT count(*) FROM outbox.relay WHERE progress IS NOT NULL`)
				if err := late.SetProgress(t.Context(), 1, ""); !errors.Is(err, outbox.ErrNotRunning) {
					t.Errorf("after the run: %v, want ErrNotRunning", err)
				}
			})
		})
	}
}

// The progress of a relay that died is not shown: its row says until when it was alive.
func TestProgressOfADeadRelayIsNotShown(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	id := enqueueSpecs(t, db, outbox.TaskSpec{Type: "LONG", Payload: payload{}})[0]
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, progress)
		VALUES (gen_random_uuid(), 'h', 1, now() + interval '1 hour', '{LONG}',
			jsonb_build_object($1::bigint::text, '{"fraction": 1, "message": "m", "at": "2026-01-01T00:00:00Z"}'::jsonb))`, id)
	db.Do(t, `UPDATE outbox.task SET created_at = '2025-01-01'`)
	if got := progressOf(t, db, id); got != "1 m" {
		t.Errorf("of a living relay: %s", got)
	}
	db.Do(t, `UPDATE outbox.relay SET alive_until = now() - interval '1 second'`)
	if got := progressOf(t, db, id); got != "<nil>" {
		t.Errorf("of a dead one: %s", got)
	}
}

// Bad progress and bad results are refused, and change nothing.
func TestProgressAndResultsThatCannotBeShownAreRefused(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	outcomes := noted[string]{}
	task := func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		task := tasks[0]
		nan := 0.0
		nan /= nan
		for name, err := range map[string]error{
			"ErrInvalidOption -":    task.SetProgress(ctx, -0.1, ""),
			"ErrInvalidOption +":    task.SetProgress(ctx, 1.1, ""),
			"ErrInvalidOption NaN":  task.SetProgress(ctx, nan, ""),
			"ErrInvalidOption long": task.SetProgress(ctx, 0, strings.Repeat("x", 201)),
			"ErrInvalidOption NUL":  task.SetProgress(ctx, 0, "\x00"),
			"ErrPayloadTooLarge":    task.SetResult(strings.Repeat("x", outbox.MaxResult-1)),
			"ErrInvalidPayload":     task.SetResult(make(chan int)),
		} {
			is := map[string]error{"ErrInvalidOption": outbox.ErrInvalidOption, "ErrPayloadTooLarge": outbox.ErrPayloadTooLarge,
				"ErrInvalidPayload": outbox.ErrInvalidPayload}[strings.Fields(name)[0]]
			if !errors.Is(err, is) {
				outcomes.add(fmt.Sprint(name, ": ", err))
			}
		}
		ended, cancel := context.WithCancelCause(ctx)
		cancel(errAlways)
		if err := task.SetProgress(ended, 0, ""); !errors.Is(err, errAlways) {
			outcomes.add(fmt.Sprint("ended context: ", err))
		}
		return task.SetResult(strings.Repeat("x", outbox.MaxResult-2))
	}
	registerKind(reg, "tx", "TX", 1, task, handlers.Retention(time.Hour))
	registerKind(reg, "leased", "PLAIN", 1, task)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "PLAIN", 1)
	records := once(t, db, reg, relay.Config{})
	if got := outcomes.list(); len(got) > 0 {
		t.Errorf("%q", got)
	}
	if !strings.Contains(records, outbox.ErrNoHistory.Error()) || !strings.Contains(records, "handlers.Retention") {
		t.Errorf("a result without a history: %s", records)
	}
	db.want(t, outbox.MaxResult, "bytes of the result", `SELECT octet_length(result::text) FROM outbox.done_task`)
}

// A result is in the history with the end of the task, of the run that finished it and of no other.
func TestAResultIsKeptWithTheEndOfItsTask(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tx", "group", "batch", "leased", "complete"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			onEachDriver(t, func(t *testing.T, db *database) {
				reg := handlers.New()
				registerKind(reg, kind, "SUM", 3, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
					for _, task := range tasks {
						if err := task.SetResult(map[string]int{"n": task.Payload.N, "attempt": task.Attempt}); err != nil {
							return err
						}
					}
					switch task := tasks[0]; {
					case len(tasks) > 1:
						return errAlways // one by one
					case task.Payload.N == 1 && task.Attempt == 1:
						return errAlways
					case task.Payload.N == 2:
						return task.SetResult(nil)
					case task.Payload.N == 3 && kind != "complete":
						return handlers.Discard(errAlways)
					case task.Payload.N == 4:
						return handlers.Dead(errAlways)
					}
					return nil
				}, handlers.Retention(time.Hour), relaytest.RetrySoon())
				run(t, db, reg, relay.Config{})
				var tasks []outbox.TaskSpec
				for n := range 5 {
					tasks = append(tasks, outbox.TaskSpec{Type: "SUM", Payload: payload{N: n}})
				}
				ids := enqueueSpecs(t, db, tasks...)
				wants := []string{`map[attempt:1 n:0]`, `map[attempt:2 n:1]`, "no result", `map[attempt:1 n:3]`, "dead"}
				for n, want := range wants {
					err := outbox.WaitFor(t.Context(), db.DB, ids[n])
					got, resultErr := outbox.Result[map[string]int](t.Context(), db.DB, ids[n])
					text := fmt.Sprint(got)
					switch {
					case errors.Is(err, outbox.ErrTaskDead) && errors.Is(resultErr, outbox.ErrTaskDead):
						text = "dead"
					case err == nil && errors.Is(resultErr, outbox.ErrNoResult):
						text = "no result"
					case err != nil || resultErr != nil:
						text = fmt.Sprint(err, resultErr)
					}
					if text != want {
						t.Errorf("task %d: %s, want %s", n, text, want)
					}
				}
				db.Invariants(t)
			})
		})
	}
}

// WaitFor ends however its task ends, and says how.
func TestWaitForSaysHowATaskEnded(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		reg, running, release := handlers.New(), make(chan int64), make(chan error)
		for _, name := range []string{"KEPT", "PLAIN"} {
			var opts []handlers.Option
			if name == "KEPT" {
				opts = append(opts, handlers.Retention(time.Hour))
			}
			registerKind(reg, "leased", name, 1, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
				if tasks[0].Payload.N == 1 {
					running <- tasks[0].ID
					<-ctx.Done()
					return context.Cause(ctx)
				}
				if tasks[0].Payload.N == 2 {
					return handlers.Dead(errors.New("no such user"))
				}
				running <- tasks[0].ID
				return <-release
			}, opts...)
		}
		run(t, db, reg, relay.Config{})
		cancel := func(id int64) {
			db.inTx(t, func(tx *sql.Tx) error {
				_, err := outbox.Cancel(t.Context(), tx, id)
				return err
			})
		}
		later := outbox.After(time.Hour)
		for _, c := range []struct {
			name, taskType string
			n              int
			opts           []outbox.Option
			end            func(id int64)
			want           error
			text           string
		}{
			{"done", "KEPT", 0, nil, func(int64) { release <- nil }, nil, ""},
			{"done without a record", "PLAIN", 0, nil, func(int64) { release <- nil }, outbox.ErrUnknownTask, "unknown"},
			{"dead", "PLAIN", 2, nil, nil, outbox.ErrTaskDead, "handler: no such user"},
			{"canceled as it waits", "KEPT", 0, []outbox.Option{later}, cancel, outbox.ErrCanceled, "task"},
			{"canceled as it runs", "PLAIN", 1, nil, cancel, outbox.ErrCanceled, "task"},
			{"removed without a record", "PLAIN", 0, []outbox.Option{later}, cancel, outbox.ErrUnknownTask, "unknown"},
		} {
			id := enqueueSpecs(t, db, outbox.TaskSpec{Type: c.taskType, Payload: payload{N: c.n}, Options: c.opts})[0]
			if len(c.opts) == 0 && c.end != nil {
				if got := <-running; got != id {
					t.Fatalf("%s: task %d runs, want %d", c.name, got, id)
				}
			}
			ended, looked := make(chan error), make(chan struct{}, 1000)
			watched := &faulty{each: func(_ context.Context, call string) {
				if strings.Contains(call, "outbox: end of a task") {
					looked <- struct{}{}
				}
			}}
			through := db.through(t, watched.wrap)
			go func() { ended <- outbox.WaitFor(t.Context(), through.DB, id) }()
			if c.end != nil {
				if _, err := outbox.Result[int](t.Context(), db.DB, id); !errors.Is(err, outbox.ErrNotFinished) {
					t.Errorf("%s: the result of an open task: %v", c.name, err)
				}
				<-looked
				<-looked // the first one has seen it
				c.end(id)
			}
			if err := <-ended; !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
			}
		}
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, limits)
			VALUES (gen_random_uuid(), 'without a history', 1, now() + interval '1 hour', '{KEPT}', '{}')`)
		mixed := enqueueSpecs(t, db, outbox.TaskSpec{Type: "KEPT", Payload: payload{}, Options: []outbox.Option{later}})[0]
		looked := make(chan struct{}, 1000)
		watched := &faulty{each: func(_ context.Context, call string) {
			if strings.Contains(call, "outbox: end of a task") {
				looked <- struct{}{}
			}
		}}
		through, ended := db.through(t, watched.wrap), make(chan error)
		go func() { ended <- outbox.WaitFor(t.Context(), through.DB, mixed) }()
		<-looked
		<-looked
		cancel(mixed)
		if err := <-ended; !errors.Is(err, outbox.ErrUnknownTask) {
			t.Errorf("a relay without a history might have done it: %v", err)
		}
		for id, want := range map[int64]error{1 << 40: outbox.ErrUnknownTask, 0: outbox.ErrInvalidOption} {
			if err := outbox.WaitFor(t.Context(), db.DB, id); !errors.Is(err, want) {
				t.Errorf("task %d: %v, want %v", id, err, want)
			}
			if _, err := outbox.Result[int](t.Context(), db.DB, id); !errors.Is(err, want) {
				t.Errorf("result of task %d: %v, want %v", id, err, want)
			}
		}
		open := enqueueSpecs(t, db, outbox.TaskSpec{Type: "NOBODYS", Payload: payload{}})[0]
		ctx, end := context.WithCancelCause(t.Context())
		end(errAlways)
		if err := outbox.WaitFor(ctx, db.DB, open); !errors.Is(err, errAlways) {
			t.Errorf("the end of its context: %v", err)
		}
	})
}

// A relay answers who asks for a task, on the channel of wake-ups, when a run of it has ended; it says
// nothing of other tasks.
func TestARelayTellsOtherProcessesOfARunThatTheyAskedFor(t *testing.T) {
	t.Parallel()
	db, reg, release := newDatabase(t), handlers.New(), make(chan error)
	slow := func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return <-release }
	registerKind(reg, "leased", "SLOW", 1, slow)
	run(t, db, reg, relay.Config{ListenDSN: db.URL})
	listening(t, db)
	heard, questions := make(chan string, 1000), make(chan string, 1000)
	other := pq.NewListener(db.URL, time.Second, time.Second, nil)
	defer other.Close()
	must(other.Listen("outbox"))
	go func() {
		for n := range other.Notify {
			switch {
			case n == nil: // it connects again
			case strings.HasPrefix(n.Extra, "ended "):
				heard <- n.Extra
			case strings.HasPrefix(n.Extra, "wait "):
				questions <- n.Extra
			}
		}
	}()
	spec := outbox.TaskSpec{Type: "SLOW", Payload: payload{}}
	ids := enqueueSpecs(t, db, spec, spec, spec, spec)
	for _, forged := range []string{"wait", "wait ", "wait x", "wait -1", "wait 99999999999999999999", "wait 1 2"} {
		db.Do(t, `SELECT pg_notify('outbox', $1)`, forged)
	}
	for range 2 { // twice: once is enough
		db.Do(t, `SELECT pg_notify('outbox', $1)`, await.Question(ids[2]))
	}
	db.Do(t, `SELECT pg_notify('outbox', $1)`, await.Question(ids[1]))
	waits := make(chan error)
	go func() { waits <- outbox.WaitFor(t.Context(), db.DB, ids[0]) }()
	for <-questions != await.Question(ids[0]) {
	}
	const nobodys = 1 << 40
	noted, stop := await.Wait("outbox", nobodys)
	defer stop()
	db.Do(t, `SELECT pg_notify('outbox', $1)`, await.Answer(nobodys))
	<-noted // so the relay has noted what came before it
	<-heard
	for range ids {
		release <- nil
	}
	if err := <-waits; !errors.Is(err, outbox.ErrUnknownTask) { // it has no history
		t.Error(err)
	}
	var got []string
	for range 3 {
		select {
		case text := <-heard:
			got = append(got, text)
		case <-time.After(time.Minute):
			t.Fatalf("a minute later it has answered %q", got)
		}
	}
	db.Emptied(t, time.Minute)
	db.Do(t, `SELECT pg_notify('outbox', $1)`, await.Answer(nobodys))
	for text := <-heard; text != await.Answer(nobodys); text = <-heard {
		got = append(got, text)
	}
	slices.Sort(got)
	if want := []string{await.Answer(ids[0]), await.Answer(ids[1]), await.Answer(ids[2])}; !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
}

// A write of progress that gets no answer holds up no heartbeat, which changes the same row.
func TestProgressThatIsNotWrittenCostsNoLease(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for name, how := range map[string]proxy.How{"request": proxy.SilenceRequest, "reply": proxy.SilenceReply} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, "postgres")
			p, url := relaytest.Through(t, db.URL)
			silent, until := make(chan struct{}), ""
			p.Set(&proxy.Trap{Catches: proxy.Statement("outbox: show progress"), How: how, Then: func() { close(silent) }})
			reg := handlers.New()
			registerKind(reg, "leased", "LONG", 1, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
				if err := tasks[0].SetProgress(ctx, 0.5, ""); err != nil {
					return err
				}
				<-silent
				until = db.Text(t, `SELECT alive_until + interval '11 seconds' FROM outbox.relay`)
				db.becomes(t, time.Minute, true, "beats that come through", `SELECT alive_until > $1 FROM outbox.relay`, until)
				return context.Cause(ctx)
			})
			pool, err := pgdb.Open(url)
			noErr(t, err)
			t.Cleanup(func() { pool.Close() })
			relaytest.Run(t, pool, reg, relay.Config{})
			enqueueSpecs(t, db, outbox.TaskSpec{Type: "LONG", Payload: payload{}})
			db.Emptied(t, 2*time.Minute)
			db.want(t, 0, "failed attempts", `SELECT COALESCE(sum(tasks), 0) FROM (SELECT tasks, kind FROM outbox.counter
				UNION ALL SELECT tasks, kind FROM outbox.counter_log) AS c WHERE kind = 'failed'`)
		})
	}
}
