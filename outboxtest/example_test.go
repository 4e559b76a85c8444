package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

// The app that the examples test.

const createUsr = `CREATE TABLE usr (usr_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL,
	credit int NOT NULL DEFAULT 0)`

type Welcome struct{ UserID int64 }

var (
	SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")
	GrantCredit = outbox.NewTaskType[Welcome]("GRANT_CREDIT")
)

func signUp(ctx context.Context, tx *sql.Tx, email string) error {
	var w Welcome
	err := tx.QueryRowContext(ctx, `INSERT INTO usr (email) VALUES ($1) RETURNING usr_id`, email).Scan(&w.UserID)
	if err != nil {
		return err
	}
	if _, err := GrantCredit.Enqueue(ctx, tx, w); err != nil {
		return err
	}
	_, err = SendWelcome.Enqueue(ctx, tx, w, outbox.After(time.Hour))
	return err
}

func registry(send func(userID int64) error) *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, GrantCredit, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Welcome]) error {
		_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + 10 WHERE usr_id = $1`, task.Payload.UserID)
		return err
	})
	handlers.Leased(reg, SendWelcome, func(ctx context.Context, task *outbox.Task[Welcome]) error {
		return send(task.Payload.UserID)
	}, handlers.MaxAttempts(3))
	return reg
}

// In an app's test t is the test's, and its database has been migrated.
func ExampleRequireEnqueued() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		outboxtest.RequireEnqueued(t, tx, GrantCredit, nil)
		tasks := outboxtest.RequireEnqueuedN(t, tx, 1, SendWelcome,
			func(w Welcome) bool { return w.UserID == 1 }, outboxtest.After(time.Hour))
		fmt.Printf("%s for user %d\n", tasks[0].Type, tasks[0].Payload.UserID)

		outboxtest.RequireNotEnqueued(t, tx, SendWelcome, func(w Welcome) bool { return w.UserID != 1 })
		fmt.Println(len(outboxtest.Enqueued(t, tx, SendWelcome, nil)))
	})
	// Output:
	// SEND_WELCOME for user 1
	// 1
}

func ExampleDrain() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		reg := registry(func(userID int64) error {
			fmt.Println("mail to user", userID)
			return nil
		})
		fmt.Println(outboxtest.Drain(t, tx, reg)) // what is due: the mail is not
		var credit int
		relaytest.Must(tx.QueryRowContext(t.Context(), `SELECT credit FROM usr WHERE usr_id = 1`).Scan(&credit))
		fmt.Println("credit:", credit)
		fmt.Println(outboxtest.Drain(t, tx, reg, outboxtest.Advance(2*time.Hour)))
	})
	// Output:
	// GRANT_CREDIT #1, attempt 1: done
	// credit: 10
	// mail to user 1
	// SEND_WELCOME #2, attempt 1: done
}

// A unit test of a Leased handler. The tables of the app are enough.
func ExampleNewTask() {
	charge := outbox.NewTaskType[int]("CHARGE")
	handler := func(ctx context.Context, task *outbox.Task[int]) error {
		if err := task.Extend(ctx, time.Minute); err != nil { // the provider is slow
			return err
		}
		return task.Complete(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE usr SET credit = credit + $1`, task.Payload)
			return err
		})
	}
	example(func(t testing.TB, tx *sql.Tx) {
		exec(t, tx, `INSERT INTO usr (email) VALUES ('ada@example.com')`)
		lease := &outboxtest.Lease{Tx: tx}
		task := outboxtest.NewTask(t, charge, 42, lease)
		task.Attempt = 3
		fmt.Println(handler(t.Context(), task), lease.Completed, lease.Extended)
		fmt.Println("credit:", text(t, tx, `SELECT credit FROM usr`))

		lost := outboxtest.NewTask(t, charge, 42, &outboxtest.Lease{Err: outbox.ErrLeaseLost})
		fmt.Println(errors.Is(handler(t.Context(), lost), outbox.ErrLeaseLost))
	})
	// Output:
	// <nil> true [1m0s]
	// credit: 42
	// true
}

// Retries of a mail server that stays down, without waiting for the backoff.
func ExampleRetryNow() {
	example(func(t testing.TB, tx *sql.Tx) {
		if _, err := SendWelcome.Enqueue(t.Context(), tx, Welcome{UserID: 1}); err != nil {
			t.Fatal(err)
		}
		errDown := errors.New("the mail server is down")
		result := outboxtest.Drain(t, tx, registry(func(int64) error { return errDown }), outboxtest.RetryNow())
		fmt.Println(result)
		fmt.Println(result.Count(relay.OutcomeDead), errors.Is(result.Err(), errDown))
	})
	// Output:
	// SEND_WELCOME #1, attempt 1: failed: the mail server is down
	// SEND_WELCOME #1, attempt 2: failed: the mail server is down
	// SEND_WELCOME #1, attempt 3: dead: the mail server is down
	// 1 true
}

// example calls f as a test of an app would run: in a transaction on a migrated database, which is
// rolled back.
func example(f func(t testing.TB, tx *sql.Tx)) {
	t := &exampleTB{}
	defer t.cleanup()
	db := newDB(t, "postgres")
	exec(t, db, createUsr)
	f(t, begin(t, db))
}

// exampleTB is what the examples, which have no *testing.T, use of one.
type exampleTB struct {
	testing.TB
	ends []func()
}

func (t *exampleTB) cleanup() {
	for _, f := range slices.Backward(t.ends) {
		f()
	}
}

func (t *exampleTB) Cleanup(f func())             { t.ends = append(t.ends, f) }
func (t *exampleTB) Context() context.Context     { return context.Background() }
func (*exampleTB) Helper()                        {}
func (*exampleTB) Failed() bool                   { return false }
func (*exampleTB) Logf(string, ...any)            {}
func (*exampleTB) Output() io.Writer              { return io.Discard }
func (*exampleTB) Fatal(args ...any)              { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
