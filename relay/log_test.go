package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// canary is in all that may not be seen.
const canary = "C4n4ry"

// I12: with secrets in payloads, headers, connection strings and rows, and everything going wrong
// that logs, they are in no record, at Debug level either.
func TestNoSecretReachesALog(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	owner := adopt(t, server.URL())
	owner.Do(t, `CREATE ROLE app SUPERUSER LOGIN PASSWORD '`+canary+`'`)
	owner.Do(t, `CREATE TABLE account (email text PRIMARY KEY)`)
	owner.Do(t, `INSERT INTO account VALUES ('`+canary+`')`)
	app := as(t, owner.URL, "app", canary)

	log := &records{}
	reg := handlers.New()
	reg.Use(handlers.Log(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	type raw = json.RawMessage
	type number struct{ N int }
	type nested struct{ M map[string]struct{ N []int } }
	opts := []handlers.Option{handlers.Backoff(constant(50 * time.Millisecond)), handlers.MaxAttempts(2)}
	tx := func(name string, f func(context.Context, *sql.Tx, *outbox.Task[raw]) error, more ...handlers.Option) {
		registerTx(reg, outbox.NewTaskType[raw](name), f, append(opts, more...)...)
	}
	lease := func(name string, f func(context.Context, *outbox.Task[raw]) error, more ...handlers.Option) {
		handlers.Leased(reg, outbox.NewTaskType[raw](name), f, append(opts, more...)...)
	}
	// PostgreSQL's Detail of such an error has the row.
	conflict := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO account VALUES ('`+canary+`')`)
		return err
	}
	completes := func(ctx context.Context, task *outbox.Task[raw]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error { return conflict(ctx, tx) })
	}
	registerTx(reg, outbox.NewTaskType[number]("UNDECODABLE"), func(context.Context, *sql.Tx, *outbox.Task[number]) error {
		return nil
	}, opts...)
	handlers.Batch(reg, outbox.NewTaskType[nested]("UNDECODABLE_BATCH"), 10,
		func(context.Context, *sql.Tx, []*outbox.Task[nested]) error {
			return nil
		}, opts...)
	handlers.Leased(reg, outbox.NewTaskType[number]("UNDECODABLE_LEASED"),
		func(context.Context, *outbox.Task[number]) error {
			return nil
		}, opts...)
	handlers.Batch(reg, outbox.NewTaskType[raw]("CONFLICT_BATCH"), 10,
		func(ctx context.Context, tx *sql.Tx, _ []*outbox.Task[raw]) error {
			return conflict(ctx, tx)
		}, opts...)
	tx("CONFLICT", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[raw]) error { return conflict(ctx, tx) })
	tx("LATER", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[raw]) error {
		return conflict(ctx, tx)
	}, handlers.Backoff(constant(time.Hour)))
	tx("PANIC_CONFLICT", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[raw]) error { panic(conflict(ctx, tx)) })
	tx("AGAIN_WITH", func(_ context.Context, _ *sql.Tx, task *outbox.Task[raw]) error {
		return handlers.RunAgainWith(task, 0, raw(`{"`+canary+`": `+canary+`}`))
	})
	tx("PANIC", func(context.Context, *sql.Tx, *outbox.Task[raw]) error { panic("at the sight of it") })
	tx("DONE", func(context.Context, *sql.Tx, *outbox.Task[raw]) error { return nil })
	lease("CONFLICT_LEASED", completes)
	lease("CONFLICT_DISCARDED", func(ctx context.Context, task *outbox.Task[raw]) error {
		return handlers.Discard(completes(ctx, task))
	}, handlers.Retention(time.Hour))
	lease("TIMES_OUT", func(ctx context.Context, _ *outbox.Task[raw]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, handlers.Timeout(100*time.Millisecond))
	lease("DISCARDED", func(context.Context, *outbox.Task[raw]) error { return handlers.Discard(errors.New("no use")) })

	types := []string{"UNKNOWN"}
	for _, h := range handler.Registered(reg) {
		types = append(types, h.Type)
	}
	enqueue := func() {
		owner.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
			SELECT task_type, jsonb_build_object('N', $2::text, 'M', jsonb_build_object($2::text, jsonb_build_object('N',
			jsonb_build_array(1, $2::text)))), jsonb_build_object($2::text, $2::text)
			  FROM unnest($1::text[]) task_type`, pq.Array(types), canary)
	}
	// LISTEN works, and it fails at a wrong port and with a wrong password.
	for _, dsn := range []string{app, withPort(t, app, "1"), strings.Replace(app, canary, "wrong"+canary, 1)} {
		r := run(t, open(t, app), reg, relay.Config{ListenDSN: dsn, PollInterval: 50 * time.Millisecond})
		enqueue()
		owner.doneBut(t)
		if dsn == app {
			noErr(t, errors.Join(server.Stop("immediate"), server.Start(context.Background())))
			owner.reachable(t)
			enqueue()
			owner.doneBut(t)
		} else {
			eventually(t, 20*time.Second, "LISTEN fails", func() bool { return r.Log.Count("no wake-ups by LISTEN") > 0 })
		}
		r.Stop()
		log.Write([]byte(r.Log.String()))
	}
	// The driver cannot parse what the pool was opened with, and repeats it or a part in its error;
	// or it gets nowhere with it.
	for _, broken := range []string{strings.Replace(app, "127.0.0.1", "%zz", 1),
		"host=127.0.0.1 user=app password=a " + canary,
		withPort(t, app, "1"), strings.Replace(app, canary, "wrong"+canary, 1)} {
		r := run(t, open(t, broken), reg, relay.Config{})
		eventually(t, 20*time.Second, "the pool fails", func() bool {
			return r.Log.Count(outageBegins)+r.Log.Count("PostgreSQL refuses what the relay needs") > 0
		})
		r.Stop()
		log.Write([]byte(r.Log.String()))
	}

	for _, want := range []string{"does not decode", "discarded", "became a dead letter", "at the sight of it", unhandled,
		outageBegins, "duplicate key", "level=DEBUG",
		"password authentication failed", "connection refused", "the error is not shown", "PANIC_CONFLICT", "CONFLICT_BATCH", "CONFLICT_LEASED", "AGAIN_WITH", "TIMES_OUT"} {
		if log.Count(want) == 0 {
			t.Errorf("nothing was logged of %q: the test shows nothing", want)
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, canary) || strings.Contains(line, "://") {
			t.Errorf("a record has a secret: %s", line)
		}
	}
	for _, table := range []string{"task", "dead_task", "done_task"} {
		if owner.Int(t, `SELECT count(*) FROM outbox.`+table+` WHERE last_error LIKE '%duplicate key%'`) == 0 {
			t.Errorf("no conflict is in %s: the test shows nothing", table)
		}
		if n := owner.Int(t, `SELECT count(*) FROM outbox.`+table+` WHERE last_error LIKE '%'||$1||'%'`, canary); n > 0 {
			t.Errorf("%d rows of %s have it in their error", n, table)
		}
	}
	stats, err := outbox.Stats(t.Context(), owner)
	if text := fmt.Sprintf("%+v", stats); err != nil || len(stats) < 10 || strings.Contains(text, canary) {
		t.Errorf("Stats say %s, %v", text, err)
	}
}

// handlers.Log and the relay share a logger, and none says what the other does.
func TestEachEndOfARunIsOneRecordOfTheRelaysLogger(t *testing.T) {
	boom := errors.New("boom")
	ends := map[string]struct {
		level string
		end   func() error
	}{
		"DONE":      {"DEBUG", func() error { return nil }},
		"FAILED":    {"WARN", func() error { return boom }},
		"PANICKED":  {"WARN", func() error { panic(boom) }},
		"THROTTLED": {"INFO", func() error { return handlers.RetryAfter(time.Hour, boom) }},
		"DEAD":      {"ERROR", func() error { return handlers.Dead(boom) }},
		"DISCARDED": {"INFO", func() error { return handlers.Discard(boom) }},
		"SNOOZED":   {"INFO", func() error { return handlers.Snooze(time.Hour) }},
		"AGAIN":     {"INFO", func() error { return handlers.RunAgain(time.Hour) }},
	}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		reg.Use(handlers.Log(nil))
		for name, c := range ends {
			kinds[kind](reg, name, func(*outbox.Task[payload]) error { return c.end() }, handlers.Backoff(constant(time.Hour)))
			db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ($1, '{"N": 1}')`, name)
		}
		log := once(t, db, reg, relay.Config{})
		for name, c := range ends {
			var records []string
			for line := range strings.Lines(log) {
				if strings.Contains(line, "task_type="+name+" ") {
					records = append(records, line)
				}
			}
			if len(records) != 1 || !strings.Contains(records[0], "level="+c.level+" ") {
				t.Errorf("%s: want one record at %s, got %q", name, c.level, records)
			}
		}
	})
}

// lib/pq prints the wire with this setting, so the log says it.
func TestARelayWarnsThatLibpqPrintsPayloads(t *testing.T) {
	db := newDatabase(t)
	for value, want := range map[string]int{"1": 1, "0": 0, "": 0} {
		t.Setenv("PQGO_DEBUG", value)
		log := once(t, db, all(), relay.Config{})
		if got := strings.Count(log, "PQGO_DEBUG=1 makes lib/pq print"); got != want ||
			strings.Count(log, "level=WARN") != want {
			t.Errorf("PQGO_DEBUG=%s: %d warnings, want %d: %s", value, got, want, log)
		}
	}
}

// doneBut waits until only tasks are left that nobody handles or that are put off.
func (db *database) doneBut(t testing.TB) {
	t.Helper()
	db.becomes(t, 30*time.Second, 0, "all others are done", `SELECT count(*) FROM outbox.task WHERE task_type <> 'UNKNOWN'
		AND (task_type <> 'LATER' OR attempt = 0)`)
}

// The record is written while the handler runs, and only one that sends no statement is to be
// Leased.
func TestTheLogSaysWhyATransactionStaysOpen(t *testing.T) {
	t.Parallel()
	lines, pids := map[string]string{}, map[string]int{}
	for try := 0; try < 5 && len(lines) < 4; try++ { // a busy machine ends the look at the backend by its time limit
		t.Run(fmt.Sprint("try ", try), func(t *testing.T) {
			said, pid := slowTransactions(t)
			for name, line := range said {
				if strings.Contains(line, "state=") {
					lines[name], pids[name] = line, pid
				}
			}
		})
	}
	for name, wants := range map[string][]string{
		"LOCK":      {"waits for a lock", fmt.Sprintf("blocked_by_pid=%d", pids["LOCK"]), `waits_for="Lock `},
		"LOCKS":     {"waits for a lock", fmt.Sprintf("blocked_by_pid=%d", pids["LOCKS"]), `waits_for="Lock relation"`},
		"IDLE":      {"register it as Leased", `state="idle in transaction"`},
		"STATEMENT": {"its statement is slow", `waits_for="Timeout PgSleep"`},
	} {
		for _, want := range wants {
			if !strings.Contains(lines[name], want) {
				t.Errorf("%s: the record does not say %s: %s", name, want, lines[name])
			}
		}
		if strings.Contains(lines[name], "Leased") != (name == "IDLE") {
			t.Errorf("%s: wrong advice: %s", name, lines[name])
		}
	}
}

// slowTransactions are the records of handlers that keep their transactions open, by type, and the
// backend that two of them wait for.
func slowTransactions(t *testing.T) (lines map[string]string, pid int) {
	t.Helper()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE account (n int); INSERT INTO account VALUES (0); CREATE TABLE ledger ()`)
	holder, err := db.BeginTx(t.Context(), nil)
	must(err)
	must(holder.QueryRowContext(t.Context(), `UPDATE account SET n = 1 RETURNING pg_backend_pid()`).Scan(&pid))
	_, err = holder.ExecContext(t.Context(), `LOCK TABLE ledger`)
	must(err)
	var returned atomic.Int32
	done := make(chan struct{})
	reg := handlers.New()
	of := func(name string, f func(ctx context.Context, tx *sql.Tx) error, opts ...handlers.Option) {
		registerTx(reg, outbox.NewTaskType[any](name), func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[any]) error {
			defer returned.Add(1)
			return f(ctx, tx)
		}, opts...)
		db.Enqueue(t, name, 1)
	}
	sends := func(statement string) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = 0`); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, statement)
			return err
		}
	}
	of("LOCK", sends(`UPDATE account SET n = n + 1`))
	locks, calls := sends(`LOCK TABLE ledger`), 0
	of("LOCKS", func(ctx context.Context, tx *sql.Tx) error {
		if calls++; calls == 1 { // the first group has one task
			return nil
		}
		return locks(ctx, tx)
	}, handlers.GroupCommit(10, time.Second), handlers.MaxRunning(1))
	db.Enqueue(t, "LOCKS", 2)
	of("IDLE", func(context.Context, *sql.Tx) error { <-done; return nil })
	of("STATEMENT", sends(`SELECT pg_sleep(60)`))
	r := run(t, db, reg, relay.Config{Workers: 4})
	const slow = "a handler keeps a transaction open for long"
	eventually(t, time.Minute, "four are logged", func() bool { return r.Log.Count(slow) >= 4 })
	if n := returned.Load(); n > 1 {
		t.Errorf("%d handlers had returned", n)
	}
	must(holder.Rollback())
	close(done)
	lines = map[string]string{}
	for line := range strings.Lines(r.Log.String()) {
		if _, of, found := strings.Cut(line, "task_type="); found && strings.Contains(line, slow) {
			name, _, _ := strings.Cut(of, " ")
			lines[name] = line
		}
	}
	db.Do(t, `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep(60)%'`)
	return lines, pid
}
