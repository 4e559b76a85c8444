package handlers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

type Credit struct {
	UserID, Amount int
}

var GrantCredit = outbox.NewTaskType[Credit]("GRANT_CREDIT")

// usrs is a database with an app's table of users, some without credit yet.
func usrs(n int) (db *sql.DB, drop func()) {
	db, drop = exampleDatabase()
	_, err := db.Exec(`CREATE TABLE usr (usr_id int PRIMARY KEY, credit int NOT NULL DEFAULT 0 CHECK (credit <= 100))`)
	must(err)
	_, err = db.Exec(`INSERT INTO usr SELECT generate_series(1, $1::int)`, n)
	must(err)
	return db, drop
}

func printRow(db *sql.DB, query string) {
	var text sql.NullString
	must(db.QueryRow(query).Scan(&text))
	fmt.Println(text.String)
}

// The handler's writes and the removal of its task commit together. When it fails its writes are
// rolled back, and the record of that is kept.
func ExampleTx() {
	ctx := context.Background()
	db, drop := usrs(1)
	defer drop()
	reg := handlers.New()
	handlers.Tx(reg, GrantCredit, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Credit]) error {
		_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + $2 WHERE usr_id = $1`, task.Payload.UserID,
			task.Payload.Amount)
		if err == nil && task.Payload.Amount == 20 {
			err = errors.New("not today")
		}
		return err
	}, handlers.MaxAttempts(1))
	enqueueAll(db, GrantCredit.New(Credit{UserID: 1, Amount: 10}), GrantCredit.New(Credit{UserID: 1, Amount: 20}))
	runDue(ctx, db, reg)
	printRow(db, `SELECT 'credit ' || credit FROM usr`)
	printRow(db, `SELECT 'dead after attempt ' || attempt || ': ' || last_error FROM outbox.dead_task`)
	// Output:
	// credit 10
	// dead after attempt 1: not today
}

// Up to 100 tasks in one call and one transaction. Those that it cannot do it names in a
// BatchResult, and has written nothing for them.
func ExampleBatch() {
	ctx := context.Background()
	db, drop := usrs(250)
	defer drop()
	reg := handlers.New()
	handlers.Batch(reg, GrantCredit, 100, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[Credit]) error {
		var users, amounts []int
		bad := handlers.BatchResult{}
		for _, t := range tasks {
			if t.Payload.Amount < 0 {
				bad[t.ID] = handlers.Dead(fmt.Errorf("a credit of %d", t.Payload.Amount))
				continue
			}
			users, amounts = append(users, t.Payload.UserID), append(amounts, t.Payload.Amount)
		}
		_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + n.amount
			FROM unnest($1::int[], $2::int[]) AS n (id, amount) WHERE usr_id = n.id`,
			pq.Array(users), pq.Array(amounts))
		if err != nil {
			return err
		}
		fmt.Println(len(users), "of", len(tasks))
		return bad // an empty one is like nil
	})
	tasks := make([]outbox.TaskSpec, 250)
	for i := range tasks {
		tasks[i] = GrantCredit.New(Credit{UserID: i + 1, Amount: 10})
	}
	tasks[150] = GrantCredit.New(Credit{UserID: 151, Amount: -1})
	enqueueAll(db, tasks...)
	runDue(ctx, db, reg)
	printRow(db, `SELECT 'users with credit: ' || count(*) FROM usr WHERE credit = 10`)
	printRow(db, `SELECT last_error FROM outbox.dead_task`)
	// Output:
	// 100 of 100
	// 99 of 100
	// 50 of 50
	// users with credit: 249
	// a credit of -1
}

type Visit struct{ Page string }

var CountVisit = outbox.NewTaskType[Visit]("COUNT_VISIT")

// With sqlx, one statement inserts a row for each task.
func ExampleBatch_sqlx() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	dbx := sqlx.NewDb(db, "postgres") // the app's
	dbx.MustExec(`CREATE TABLE visits (page text NOT NULL)`)
	reg := handlers.New()
	handlers.Batch(reg, CountVisit, 500, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[Visit]) error {
		visits := make([]Visit, len(tasks))
		for i, task := range tasks {
			visits[i] = task.Payload
		}
		_, err := outbox.SqlxTx(dbx, tx).NamedExecContext(ctx, `INSERT INTO visits (page) VALUES (:page)`, visits)
		return err
	})
	enqueueAll(db, CountVisit.New(Visit{"/"}), CountVisit.New(Visit{"/prices"}))
	runDue(ctx, db, reg)
	printRow(db, `SELECT string_agg(page, ' ' ORDER BY page) FROM visits`)
	// Output: / /prices
}

// An error returns the whole batch: nothing of it is kept, no attempt is counted, and its tasks run
// one by one, so that one bad task fails alone.
func ExampleBatch_rollback() {
	ctx := context.Background()
	db, drop := usrs(3)
	defer drop()
	reg := handlers.New()
	handlers.Batch(reg, GrantCredit, 100, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[Credit]) error {
		for _, t := range tasks {
			_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + $2 WHERE usr_id = $1`, t.Payload.UserID,
				t.Payload.Amount)
			if err != nil {
				fmt.Println(len(tasks), "tasks: rolled back")
				return err // it breaks the table's CHECK
			}
		}
		fmt.Println(len(tasks), "tasks: done")
		return nil
	}, handlers.MaxAttempts(1))
	enqueueAll(db, GrantCredit.New(Credit{1, 10}), GrantCredit.New(Credit{2, 1000}), GrantCredit.New(Credit{3, 10}))
	runDue(ctx, db, reg)
	printRow(db, `SELECT 'credits: ' || string_agg(credit::text, ', ' ORDER BY usr_id) FROM usr`)
	printRow(db, `SELECT 'dead: task ' || task_id FROM outbox.dead_task`)
	// Output:
	// 3 tasks: rolled back
	// 1 tasks: done
	// 1 tasks: rolled back
	// 1 tasks: done
	// credits: 10, 0, 10
	// dead: task 2
}

// The result of a handler decides over its task.
func ExampleActionOf() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	errRefused := errors.New("refused")
	result := outbox.NewTaskType[string]("RESULT")
	reg := handlers.New()
	handlers.Leased(reg, result, func(_ context.Context, task *outbox.Task[string]) error {
		switch task.Payload {
		case "snooze":
			return handlers.Snooze(time.Hour) // not yet: no attempt
		case "throttled":
			return handlers.RetryAfter(time.Hour, errRefused) // as a server's Retry-After asks: no attempt for three days
		case "discard":
			return handlers.Discard(errRefused) // there is nothing left to do
		case "dead":
			return handlers.Dead(errRefused) // no retry will help: a person should look
		}
		return nil
	}, handlers.NoJitter())
	enqueueAll(db, result.New("done"), result.New("snooze"), result.New("throttled"), result.New("discard"),
		result.New("dead"))
	runDue(ctx, db, reg)
	printRow(db, `SELECT string_agg(format('%s: %s in %s min, %s attempts begun', payload #>> '{}', state,
			round(extract(epoch FROM run_at - now()) / 60), attempt), E'\n' ORDER BY task_id) FROM outbox.task`)
	printRow(db, `SELECT string_agg(payload #>> '{}', ', ') || ' letters' FROM outbox.dead_task`)
	// Output:
	// snooze: scheduled in 60 min, 0 attempts begun
	// throttled: scheduled in 60 min, 0 attempts begun
	// dead letters
}

// The relay and handlers.Log write to one logger, each event once.
func ExampleLog() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	result := outbox.NewTaskType[string]("RESULT")
	reg := handlers.New()
	reg.Use(handlers.Log(nil)) // nil: the relay's logger
	handlers.Leased(reg, result, func(_ context.Context, task *outbox.Task[string]) error {
		switch task.Payload {
		case "snooze":
			return handlers.Snooze(time.Hour)
		case "fail":
			return errors.New("no answer")
		}
		return nil
	})
	short := func(_ []string, a slog.Attr) slog.Attr {
		if slices.Contains([]string{slog.LevelKey, slog.MessageKey, "task_id"}, a.Key) {
			return a
		}
		return slog.Attr{}
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: short}))
	r, err := relay.New(db, reg, relay.Config{Logger: logger})
	must(err)
	for _, payload := range []string{"do", "snooze", "fail"} {
		enqueueAll(db, result.New(payload))
		must(r.RunOnce(ctx))
	}
	// Output:
	// level=DEBUG msg="outbox: task done" task_id=1
	// level=INFO msg="outbox: task snoozed" task_id=2
	// level=WARN msg="outbox: an attempt failed" task_id=3
}

// Three attempts, one hour and then two hours apart.
func ExampleBackoff() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	call := outbox.NewTaskType[string]("CALL")
	reg := handlers.New()
	handlers.Leased(reg, call, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Printf("attempt %d of %d\n", task.Attempt, task.MaxAttempts)
		return errors.New("no answer")
	}, handlers.MaxAttempts(3), handlers.Backoff(func(attempt int, _ error) (wait time.Duration, again bool) {
		return time.Duration(attempt) * time.Hour, true
	}))
	enqueueAll(db, call.New("Ada"))
	for range 3 {
		runDue(ctx, db, reg)
		printRow(db, `SELECT format('again in %s h', round(extract(epoch FROM run_at - now()) / 3600)) FROM outbox.task
			UNION ALL SELECT 'dead: ' || last_error FROM outbox.dead_task`)
		_, err := db.Exec(`UPDATE outbox.task SET run_at = now()`) // as if that time had passed
		must(err)
	}
	// Output:
	// attempt 1 of 3
	// again in 1 h
	// attempt 2 of 3
	// again in 2 h
	// attempt 3 of 3
	// dead: no answer
}

// Backoffs of go-retry: one hour, and then two.
func ExampleGoRetry() {
	schedule := handlers.GoRetry(func() retry.Backoff {
		return retry.WithMaxRetries(2, retry.NewExponential(time.Hour))
	})
	_ = handlers.New(handlers.Backoff(schedule)) // the default of a registry
	for attempt := 1; attempt <= 3; attempt++ {
		fmt.Println(schedule(attempt, errors.New("no answer")))
	}
	// Output:
	// 1h0m0s true
	// 2h0m0s true
	// 0s false
}

// Helpers of the examples.
var (
	exampleDatabase = relaytest.ExampleDatabase
	enqueueAll      = relaytest.EnqueueAll
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)

// Tasks share a transaction, and one that fails leaves the others their work.
func ExampleGroupCommit() {
	db, drop := usrs(3)
	defer drop()
	reg := handlers.New()
	handlers.Tx(reg, GrantCredit, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Credit]) error {
		_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + $2 WHERE usr_id = $1`, task.Payload.UserID,
			task.Payload.Amount)
		if err == nil && task.Payload.UserID == 2 {
			err = errors.New("not today")
		}
		return err
	}, handlers.GroupCommit(32, 0), handlers.MaxAttempts(1))
	enqueueAll(db, GrantCredit.New(Credit{UserID: 1, Amount: 10}), GrantCredit.New(Credit{UserID: 2, Amount: 20}),
		GrantCredit.New(Credit{UserID: 3, Amount: 30}))
	runDue(context.Background(), db, reg)
	printRow(db, `SELECT string_agg('user ' || usr_id || ' has ' || credit, ', ' ORDER BY usr_id) FROM usr`)
	printRow(db, `SELECT last_error FROM outbox.dead_task`)

	// Output:
	// user 1 has 10, user 2 has 0, user 3 has 30
	// not today
}
