package relay_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Handlers do what handlers must not do, after one effect for each of their tasks. No effect of a
// failed handler is committed, its task ends as it should, every other task is done, and the relay
// works on.
func TestAHandlerThatMisbehavesHarmsOnlyItsOwnTask(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, driver := range drivers {
		for kind, size := range map[string]int{"tx": 3, "batch": 16, "complete": 3} { // tasks of each type
			tests[driver+" "+kind] = func(t *testing.T) { testMisdeeds(t, newDatabase(t, driver), kind, size) }
		}
	}
	relaytest.Together(t, needs.Few(t, tests, drivers[0]+" tx", drivers[0]+" batch"))
}

// Whatever breaks the transaction of a group, the tasks that did nothing wrong have not tried.
func TestAGroupThatBreaksCostsTheOthersNoAttempt(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) { testMisdeeds(t, db, "group", 16) })
}

type markedPayload struct{ Marked bool }

// breakGroups are misdeeds that break a transaction, each in another way, and one that does not.
var breakGroups = []string{"nil", "hidden SQL error", "error that hides another",
	"deferred constraint", "lost connection", "tx.Rollback", "COMMIT", "COMMIT, conflict",
	"rows open with context", "own timeout"}

// testMisdeeds runs each misdeed for one marked task of several.
func testMisdeeds(t *testing.T, db *database, kind string, size int) {
	db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY);
		CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
		CREATE TABLE late (task_type text); CREATE TABLE away (code text);
		CREATE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN RAISE 'another server is away' USING ERRCODE = NEW.code; END $$;
		CREATE CONSTRAINT TRIGGER away AFTER INSERT ON away DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		EXECUTE FUNCTION away()`)
	workers, culprit := 4, 2
	if kind == "group" { // of which the first task is alone, and the culprit in the middle
		workers, culprit = 1, 7
	}
	reg, ended := handlers.New(), make(chan struct{})
	some := map[string]misdeed{}
	for name, m := range misdeeds(ended) {
		if m.slowest && kind == "batch" || m.slow && kind == "group" ||
			kind == "group" && !needs.InCI() && !slices.Contains(breakGroups, name) {
			continue
		}
		some[name] = m
		opts := []handlers.Option{handlers.MaxAttempts(1), retrySoon()}
		if m.slow {
			opts = append(opts, handlers.Timeout(time.Second))
		}
		registerKind(reg, kind, name, size,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[markedPayload]) error {
				marked := false
				for _, task := range tasks {
					marked = marked || task.Payload.Marked
					if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
						return err
					}
				}
				if !marked {
					return nil
				}
				return m.do(ctx, tx)
			}, opts...)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload)
			SELECT $1, jsonb_build_object('Marked', n = $3) FROM generate_series(1, $2) n`, name, size, culprit)
	}
	db.Do(t, `CREATE TABLE seen AS SELECT task_id, task_type, payload->>'Marked' = 'true' AS marked FROM outbox.task`)
	r := run(t, db, reg, relay.Config{Workers: workers, PollInterval: 50 * time.Millisecond})
	r.Leaves("misdeeds")               // stuck for ever
	t.Cleanup(func() { close(ended) }) // before the relay's drain
	db.Emptied(t, 90*time.Second)
	for name, m := range some {
		fate, mates, text := m.fate, done, m.text
		if kind == "complete" && m.inComplete != "" { // nothing else bounds the runs of a lost connection
			fate, text = cmp.Or(m.fateInComplete, failed), m.inComplete
		}
		if fate == committed && kind == "batch" {
			mates = committed
		}
		const became = `SELECT string_agg(DISTINCT COALESCE((SELECT reason FROM outbox.dead_task d
			WHERE d.task_id = s.task_id), 'done') || ' with ' || (SELECT count(*) FROM effect e WHERE e.task_id = s.task_id)
			|| ' effects', ', ') FROM seen s WHERE s.task_type = $1 AND s.marked = $2`
		if fate == committed { // the dead letters follow the handler's COMMIT
			eventually(t, 30*time.Second, "dead letters are written", func() bool {
				return db.Text(t, became, name, true) == fate
			})
		}
		db.want(t, fate, name+": the task ended as", became, name, true)
		db.want(t, mates, name+": the other tasks ended as", became, name, false)
		if got := db.Text(t, `SELECT max(d.last_error) FROM seen s JOIN outbox.dead_task d USING (task_id)
			WHERE s.task_type = $1 AND s.marked`, name); !strings.Contains(got, text) {
			t.Errorf("%s: last_error %.300q, want it to contain %q", name, got, text)
		}
	}
	r.Log.Want(t, 0, "no connection left")
	db.wantRows(t, 0, `late`) // nothing in a later transaction is committed
	db.Enqueue(t, "nil", 20)
	db.Emptied(t, 30*time.Second)
	r.Stop()
}

// A handler's goroutine may outlive it and go on writing through its transaction. What the handler
// fails is undone nevertheless and its failure recorded, and what it did is done.
func TestAGoroutineThatOutlivesItsHandlerChangesNothingOfItsResult(t *testing.T) {
	t.Parallel()
	tasks, attempts := 6, 2
	if relaytest.Grouped { // the transaction of more tasks goes on, as handlers.GroupCommit says
		tasks, attempts = 1, 8
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE TABLE leaked (task_id bigint)`)
		var leaked sync.WaitGroup
		reg := handlers.New()
		for name, result := range map[string]error{"TX": nil, "FAILS": errAlways} {
			relaytest.Register(reg, "tx", name, 1,
				func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
					err := effect(ctx, tx, tasks[0].ID, tasks[0].Attempt)
					leaked.Go(func() {
						for leak := error(nil); !errors.Is(leak, sql.ErrTxDone); {
							_, leak = tx.ExecContext(context.Background(),
								`INSERT INTO leaked SELECT $1 WHERE $2 = 'FAILS'`, tasks[0].ID, name)
						}
					})
					return errors.Join(err, result)
				}, handlers.MaxAttempts(attempts), retrySoon())
			db.Enqueue(t, name, tasks)
		}
		run(t, db, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 60*time.Second)
		leaked.Wait()
		db.want(t, fmt.Sprint(tasks, " ", tasks), "tasks with an effect, and effects",
			`SELECT count(DISTINCT task_id) || ' ' || count(*) FROM effect`)
		db.wantRows(t, 0, `leaked`) // by goroutines whose handlers had failed
		// Where another worker claims the task before its failure is recorded, the journal has the attempt.
		db.wantRows(t, tasks, `outbox.dead_task WHERE task_type = 'FAILS' AND attempt = $1 AND reason = 'attempts'
			AND last_error ~ 'always|the process died while it ran the task'`, attempts)
	})
}

// What becomes of the task of a handler that misbehaves.
const (
	done      = "done with 1 effects"
	failed    = "attempts with 0 effects"
	committed = "committed with 1 effects"        // its handler committed and then failed; the effect stands
	lost      = "lost_connections with 0 effects" // after ten of them
)

// misdeed is what a handler does after its effects.
type misdeed struct {
	do             func(ctx context.Context, tx *sql.Tx) error
	fate           string
	text           string // in the dead letter's last_error
	inComplete     string // is the text of a failure where Complete has another one
	fateInComplete string // with inComplete, if the task is no dead letter of the handler's
	slow           bool   // runs into its timeout
	slowest        bool   // takes too long for a batch, whose tasks run again one by one
}

var errMisdeed = errors.New("misdeed")

// execs does statements, and returns the first error, or else the result.
func execs(result error, statements ...string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return result
	}
}

// hides does statements and keeps their errors to itself.
func hides(statements ...string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range statements {
			_, _ = tx.ExecContext(ctx, s)
		}
		return nil
	}
}

// unread leaves a result unread, under a context that ends with the handler or not at all.
func unread(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, `SELECT n, repeat('x', 100) FROM generate_series(1, 100000) n`)
	if err == nil && !rows.Next() {
		err = rows.Err()
	}
	return err
}

// forEver does statements that only the server can end.
func forEver(statements string) func(context.Context, *sql.Tx) error {
	return func(_ context.Context, tx *sql.Tx) error {
		return execs(nil, statements)(context.Background(), tx)
	}
}

// misdeeds are those of handlers. One is stuck until ended is closed.
func misdeeds(ended chan struct{}) map[string]misdeed {
	const write = `INSERT INTO late VALUES ('late')`
	const hidden, rolledBack = "a statement of its transaction had failed", "rolled the transaction of its claim back"
	const inComplete = "rolled its transaction back"
	all := map[string]misdeed{
		"nil":   {do: execs(nil), fate: done},
		"error": {do: execs(errMisdeed), fate: failed, text: "misdeed"},
		"Goexit": {do: func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil },
			fate: failed, text: "Goexit"},
		"panic(nil)": {do: func(context.Context, *sql.Tx) error { panic(nil) }, fate: failed, text: "panic"},
		"error that no column takes": {do: execs(errors.New("nul\x00 \xff\xc3 " + strings.Repeat("é", 1<<19))),
			fate: failed, text: "nul\uFFFD \uFFFD ééé"},

		"rows open": {do: func(_ context.Context, tx *sql.Tx) error { return unread(context.Background(), tx) },
			fate: failed, text: "rows not closed"},
		"rows open with context": {do: unread, fate: failed, text: "rows not closed"},
		"SQL error":              {do: execs(nil, `SELECT 1/0`), fate: failed, text: "division by zero"},
		"hidden SQL error":       {do: hides(`SELECT 1/0`), fate: failed, text: hidden},
		"error that hides another": {do: func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(hides(`SELECT 1/0`)(ctx, tx), errMisdeed)
		}, fate: failed, text: "misdeed"},
		"deferred constraint": {do: execs(nil, `INSERT INTO child VALUES (1)`), fate: failed,
			text: "violates foreign key constraint"},
		// The session is put back before COMMIT, which would read the cursor and fail.
		"cursor that fails": {do: execs(nil, `DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (n - 2)
			FROM generate_series(1, 3) n`), fate: done},

		"stuck in SQL": {slow: true, do: forEver(`SELECT pg_sleep(60)`), fate: failed, text: "due to statement timeout",
			inComplete: "abandoned"}, // Complete's own statement timeout is longer
		"stuck in SQL with context": {slow: true, do: execs(nil, `SELECT pg_sleep(60)`), fate: failed},
		"stuck for ever": {slow: true, do: func(context.Context, *sql.Tx) error { <-ended; return nil },
			fate: failed, text: "abandoned"},
		"stuck in SQL for ever": {slow: true, slowest: true, fate: failed, text: "abandoned",
			do: forEver(`SET LOCAL statement_timeout = 0; SELECT pg_sleep(3600)`)},
		"own timeout": {fate: failed, text: "in time: ", do: func(ctx context.Context, tx *sql.Tx) error {
			own, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return fmt.Errorf("in time: %w", execs(nil, `SELECT pg_sleep(60)`)(own, tx))
		}},
		"lost connection": {do: execs(nil, `SELECT pg_terminate_backend(pg_backend_pid())`), fate: lost,
			text: "lost their connection", inComplete: "pg_terminate_backend"},

		// What a handler commits itself stands. Its task is done or, if it failed after that, a dead letter.
		"COMMIT":        {do: execs(nil, `COMMIT`), fate: done},
		"COMMIT, error": {do: execs(errMisdeed, `COMMIT`), fate: committed, text: "misdeed"},
		"COMMIT, Discard": {do: execs(handlers.Discard(errMisdeed), `COMMIT`), fate: done,
			fateInComplete: committed, inComplete: "misdeed"}, // of which any error is a failure
		// In a group, the error of a conflict undoes what else its tasks did.
		"COMMIT, conflict": {do: execs(stateError("40001"), `COMMIT`), fate: committed, text: "40001"},
		"COMMIT and BEGIN": {do: execs(errMisdeed, `COMMIT; BEGIN; SAVEPOINT mine; `+write), fate: committed,
			text: "misdeed"},
		"COMMIT AND CHAIN": {do: execs(nil, `COMMIT AND CHAIN`, write), fate: done},
		"tx.Commit": {do: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
			fate: done},
		"tx.Commit, panic": {fate: committed, text: "panic: misdeed",
			do: func(_ context.Context, tx *sql.Tx) error {
				_ = tx.Commit()
				panic(errMisdeed)
			}},
		"ROLLBACK":        {do: execs(nil, `ROLLBACK`), fate: failed, text: rolledBack, inComplete: inComplete},
		"ROLLBACK, error": {do: execs(errMisdeed, `ROLLBACK`), fate: failed, text: "misdeed"},
		"ROLLBACK and BEGIN": {do: execs(nil, `ROLLBACK; BEGIN; `+write), fate: failed, text: rolledBack,
			inComplete: inComplete},
		"tx.Rollback": {do: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
			fate: failed, text: rolledBack, inComplete: inComplete},
		"own savepoint": {do: execs(nil, `SAVEPOINT mine`, write, `ROLLBACK TO SAVEPOINT mine`), fate: done},
		"no savepoint":  {do: hides(write, `ROLLBACK TO SAVEPOINT nothing`), fate: failed, text: hidden},
	}
	// A trigger that writes to another server may fail with a SQLSTATE that says of a connection that
	// it has ended. The claim's own works, so it is the handler's failure.
	for _, code := range []string{"08001", "53300", "57P01", "28P01", "25006"} {
		all["another server "+code] = misdeed{fate: failed,
			do:   execs(nil, `INSERT INTO away VALUES ('`+code+`')`),
			text: "another server is away"}
	}
	return all
}

// misbehaving is how the app's code does not return: "panic" or "Goexit".
type misbehaving string

func (m misbehaving) now() {
	if m == "Goexit" {
		runtime.Goexit()
	}
	panic("oops")
}

// badPayload is a payload whose methods misbehave as its JSON says.
type badPayload struct{ how misbehaving }

func (p badPayload) MarshalJSON() ([]byte, error) { p.how.now(); return nil, nil }

func (p *badPayload) UnmarshalJSON(b []byte) error {
	if p.how = misbehaving(strings.Trim(string(b), `"`)); p.how != "fine" {
		p.how.now()
	}
	return nil
}

// badMethod is an error of which one method misbehaves.
type badMethod struct {
	name string
	how  misbehaving
}

func (e badMethod) called(name string) {
	if e.name == name {
		e.how.now()
	}
}
func (e badMethod) Error() string    { e.called("Error"); return "it said so" }
func (e badMethod) Unwrap() error    { e.called("Unwrap"); return nil }
func (e badMethod) Is(error) bool    { e.called("Is"); return false }
func (e badMethod) As(any) bool      { e.called("As"); return false }
func (e badMethod) SQLState() string { e.called("SQLState"); return "" }

// badLog keeps a record and then misbehaves.
type badLog struct {
	slog.Handler
	how misbehaving
}

func (l badLog) Handle(ctx context.Context, r slog.Record) error {
	_ = l.Handler.Handle(ctx, r)
	l.how.now()
	return nil
}

// appCode is code of the app's that misbehaves whenever a task of its type runs.
type appCode struct {
	do      func(ctx context.Context, tx *sql.Tx) error // what the handler does
	opts    []handlers.Option
	payload string // "fine" if it is empty
	some    bool   // a Batch handler returns do's error for each task
	text    string // in last_error; "" is that of the panic or Goexit
	panics  bool   // the failure is a PanicError
	value   error  // of the panic
}

func appCodes(how misbehaving) map[string]appCode {
	returns := func(err error) func(context.Context, *sql.Tx) error {
		return func(context.Context, *sql.Tx) error { return err }
	}
	does := func(f func()) func(context.Context, *sql.Tx) error {
		return func(context.Context, *sql.Tx) error { f(); return nil }
	}
	wraps := handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, c *handlers.Call) error { return fmt.Errorf("wrapped: %w", next(ctx, c)) }
	})
	log := slog.New(badLog{slog.NewTextHandler(&records{}, &slog.HandlerOptions{Level: slog.LevelDebug}), how})
	var factories atomic.Int64
	codes := map[string]appCode{
		"HANDLER":     {do: does(how.now), panics: true},
		"WRAPPED":     {do: does(how.now), opts: []handlers.Option{wraps}, panics: true},
		"PANIC_VALUE": {do: does(func() { panic(badMethod{"Error", how}) })},
		"PANIC_RESULT": {do: does(func() { panic(handlers.Discard(errMisdeed)) }), opts: []handlers.Option{wraps},
			text: "misdeed", panics: true, value: errMisdeed},
		"PANIC_BATCH_RESULT": {do: does(func() { panic(handlers.BatchResult{0: errMisdeed}) }), text: "misdeed"},
		"MIDDLEWARE": {do: returns(nil), panics: true,
			opts: []handlers.Option{handlers.Use(func(handlers.Func) handlers.Func {
				return func(context.Context, *handlers.Call) error { how.now(); return nil }
			})}},
		"LOGGER":    {do: returns(handlers.Snooze(0)), opts: []handlers.Option{handlers.Use(handlers.Log(log))}},
		"UNMARSHAL": {do: returns(nil), payload: string(how)},
		"MARSHAL": {do: func(ctx context.Context, tx *sql.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, "OTHER", badPayload{how})
			return err
		}},
		"BACKOFF": {do: returns(errMisdeed), text: "misdeed",
			opts: []handlers.Option{handlers.Backoff(func(int, error) (time.Duration, bool) { how.now(); return 0, false })}},
		"BACKOFF_FACTORY": {do: returns(errMisdeed), text: "misdeed",
			opts: []handlers.Option{handlers.Backoff(handlers.GoRetry(func() retry.Backoff {
				if factories.Add(1) > 1 { // GoRetry makes one
					how.now()
				}
				return retry.NewConstant(time.Hour)
			}))}},
		"RETRY_AFTER":  {do: returns(handlers.RetryAfter(100*time.Hour, badMethod{"Error", how}))}, // counts after three days
		"BATCH_RESULT": {do: returns(badMethod{"Error", how}), some: true},
	}
	for _, method := range []string{"Error", "Unwrap", "Is", "As", "SQLState"} {
		codes["ERROR_"+strings.ToUpper(method)] = appCode{do: returns(errors.Join(badMethod{method, how}))}
	}
	return codes
}

// Whatever code of the app's panics or ends its goroutine, each task has its two attempts and is a
// dead letter then; and all the rest goes on. The place of a panic reaches the row and the log, and
// its stack and value reach the log, observers and OnDead.
func TestAppCodeMayPanicOrEndItsGoroutine(t *testing.T) {
	t.Parallel()
	for how, said := range map[misbehaving]string{"panic": "oops", "Goexit": "runtime.Goexit"} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			types := map[string]appCode{}
			for name, c := range appCodes(how) {
				for _, kind := range []string{"tx", "batch", "complete"} {
					types[name+" "+kind] = c
					handle := func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[badPayload]) error {
						err := c.do(ctx, tx)
						if !c.some || kind != "batch" {
							return err
						}
						some := handlers.BatchResult{}
						for _, task := range tasks {
							some[task.ID] = err
						}
						return some
					}
					relaytest.Register(reg, kind, name+" "+kind, 10, handle, append(c.opts, handlers.MaxAttempts(2))...)
				}
			}
			registerTx(reg, typeTx, txEffect)
			for name, c := range types {
				payload := c.payload
				if payload == "" {
					payload = "fine"
				}
				db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, to_jsonb($2::text) FROM generate_series(1, 2)`,
					name, payload)
			}
			db.Enqueue(t, "TX", 5)
			var mu sync.Mutex
			told := map[string]int{} // failures, to OnDead
			look := func(taskType string, err error) {
				mu.Lock()
				defer mu.Unlock()
				told[taskType]++
				var p *handlers.PanicError
				c := types[taskType]
				if c.panics && (!errors.As(err, &p) || len(p.Stack) == 0 || c.value != nil &&
					!errors.Is(err, c.value)) {
					t.Errorf("%s: %v is no PanicError with a stack and %v", taskType, err, c.value)
				}
			}
			h, log := &heard{}, &records{}
			r, err := relay.New(db.DB, reg, relay.Config{
				OnDead: func(_ context.Context, d relay.DeadLetter) { look(d.Type, d.Err); how.now() },
				Observers: append([]relay.Observer{{Claimed: func(context.Context, relay.Claim) { how.now() },
					Ended: func(context.Context, relay.RunEnd) { how.now() }, Changed: func(context.Context, relay.Change) { how.now() }}},
					h.observers()...),
				WorkersByType: func(context.Context, relay.Load) map[string]int { how.now(); return nil },
				Logger:        slog.New(badLog{slog.NewTextHandler(log, nil), how}),
			})
			must(err)
			for db.Int(t, `SELECT count(*) FROM outbox.task`) > 0 {
				db.Do(t, `UPDATE outbox.task SET run_at = now(),
					timeline = jsonb_set(timeline, '{0,at}', '"2020-01-01T00:00:00Z"') WHERE state = 'scheduled'`)
				if err := r.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			const place = ", relay/misbehaving_test.go:"
			outcomes := h.outcomes()
			for name, c := range types {
				text := c.text
				if text == "" {
					text = said
					db.wantRows(t, 2, `outbox.dead_task WHERE task_type = $1 AND position($2 IN last_error) > 0`, name,
						place)
				}
				db.want(t, 2, name+": dead letters after 2 attempts", `SELECT count(*) FILTER (WHERE attempt = 2
					AND reason = 'attempts' AND position($2 IN last_error) > 0) FROM outbox.dead_task WHERE task_type = $1`, name, text)
				if got := outcomes[name]; strings.Count(got, "failed") != 2 || strings.Count(got, "dead") != 2 ||
					told[name] != 2 {
					t.Errorf("%s: observers heard %s, and OnDead of %d", name, got, told[name])
				}
			}
			db.wantRows(t, 5, `effect`)
			h.balanced(t)
			for _, want := range []string{"Backoff panicked", "OnDead panicked", "an observer panicked",
				"Config.WorkersByType panicked"} {
				if log.Count(want) == 0 {
					t.Errorf("no record with %q", want)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, want) &&
						(!strings.Contains(line, place) || !strings.Contains(line, " stack=")) {
						t.Errorf("no place or no stack in %s", line)
					}
				}
			}
		})
	}
}

// Middleware may write into the tasks of its call, and sort them: the relay reads none of them
// later.
func TestTheRelayKnowsItsTasksThoughMiddlewareChangesThem(t *testing.T) {
	t.Parallel()
	db, h, reg := newDatabase(t), &heard{}, handlers.New()
	reg.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			err := next(ctx, call)
			for _, task := range call.Tasks {
				task.ID, task.Attempt = 0, 99
				copy(task.Payload, "spoiled")
				clear(task.Headers)
			}
			clear(call.Tasks)
			return err
		}
	})
	for _, name := range []string{"group", "batch", "leased"} { // each named as its kind
		registerKind(reg, name, name, 3, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			if name != "batch" && tasks[0].Iterations == 0 {
				return handlers.RunAgain(0)
			}
			return nil
		}, handlers.Retention(time.Hour))
		for n := range 3 {
			relaytest.EnqueueAll(db.DB, outbox.TaskSpec{Type: name, Payload: payload{N: n},
				Options: []outbox.Option{outbox.Headers(map[string]string{"a": "1"})}})
		}
	}
	once(t, db, reg, relay.Config{Workers: 1, Observers: h.observers()})
	db.Want(t, "9 3 9", `SELECT concat(count(*), ' ', count(DISTINCT payload), ' ', count(*) FILTER (WHERE headers = '{"a": "1"}'))
		FROM outbox.done_task`)
	for _, e := range h.ends {
		for _, task := range e.Tasks {
			if task.ID == 0 || task.Attempt != 1 || task.Err != nil {
				t.Errorf("%s: %+v", e.Type, task)
			}
		}
	}
}

// Middleware that decrypts payloads finds them as they are in the table, whenever it is called.
func TestACallAfterADeadlockHasTheTaskAsItWas(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var calls []string
	handlers.Tx(reg, outbox.NewTaskType[string]("SEALED"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		if calls = append(calls, task.Payload); len(calls) == 1 {
			return &pq.Error{Code: "40P01", Message: "deadlock detected"}
		}
		return nil
	}, handlers.GroupCommit(2, 0), handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			var sealed struct{ Text json.RawMessage }
			if err := json.Unmarshal(call.Tasks[0].Payload, &sealed); err != nil {
				return err
			}
			call.Tasks[0].Payload = sealed.Text
			return next(ctx, call)
		}
	}))
	relaytest.EnqueueAll(db.DB, outbox.TaskSpec{Type: "SEALED", Payload: map[string]string{"Text": "hello"}})
	once(t, db, reg, relay.Config{Workers: 1})
	if !slices.Equal(calls, []string{"hello", "hello"}) {
		t.Errorf("the handler got %q", calls)
	}
}
