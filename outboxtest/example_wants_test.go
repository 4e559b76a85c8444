package outboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

// greet is code that is tested.
func greet(t testing.TB, tx *sql.Tx, opts ...outbox.Option) {
	_, err := SendWelcome.Enqueue(t.Context(), tx, Welcome{UserID: 7}, opts...)
	relaytest.Must(err)
}

// A look at what is there, that fails no test.
func ExampleEnqueued() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		for _, task := range outboxtest.Enqueued(t, tx, SendWelcome, nil) {
			fmt.Println(task.Type, task.Payload.UserID)
		}
	})
	// Output: SEND_WELCOME 1
}

// Exactly one welcome for the user.
func ExampleRequireEnqueuedN() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		tasks := outboxtest.RequireEnqueuedN(t, tx, 1, SendWelcome, func(w Welcome) bool { return w.UserID == 1 })
		fmt.Println(tasks[0].ID)
	})
	// Output: 2
}

// No mail for anybody else.
func ExampleRequireNotEnqueued() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		outboxtest.RequireNotEnqueued(t, tx, SendWelcome, func(w Welcome) bool { return w.UserID != 1 })
	})
	// Output:
}

// The welcome is due an hour after it was enqueued.
func ExampleAfter() {
	example(func(t testing.TB, tx *sql.Tx) {
		greet(t, tx, outbox.After(time.Hour))
		outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.After(time.Hour))
	})
	// Output:
}

// The welcome is due on that Monday.
func ExampleRunAt() {
	monday := time.Date(2100, 1, 4, 9, 0, 0, 0, time.UTC)
	example(func(t testing.TB, tx *sql.Tx) {
		greet(t, tx, outbox.RunAt(monday))
		outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.RunAt(monday))
	})
	// Output:
}

// The welcome has the header.
func ExampleHeader() {
	example(func(t testing.TB, tx *sql.Tx) {
		greet(t, tx, outbox.Headers(map[string]string{"request": "4f1c"}))
		outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.Header("request", "4f1c"))
	})
	// Output:
}

// The welcome is started three times at most.
func ExampleMaxAttempts() {
	example(func(t testing.TB, tx *sql.Tx) {
		greet(t, tx, outbox.MaxAttempts(3))
		outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.MaxAttempts(3))
	})
	// Output:
}

// The welcome is urgent.
func ExamplePriority() {
	example(func(t testing.TB, tx *sql.Tx) {
		greet(t, tx, outbox.Priority(-10))
		outboxtest.RequireEnqueued(t, tx, SendWelcome, nil, outboxtest.Priority(-10))
	})
	// Output:
}

// The schema of the outbox, where it has another name.
func ExampleSchema() {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		fmt.Println(len(outboxtest.Enqueued(t, tx, SendWelcome, nil, outboxtest.Schema("outbox"))))
	})
	// Output: 1
}

// drained runs the tasks of a sign-up, and returns what happened.
func drained(send func(userID int64) error, opts ...outboxtest.DrainOption) (result *outboxtest.Result) {
	example(func(t testing.TB, tx *sql.Tx) {
		relaytest.Must(signUp(t.Context(), tx, "ada@example.com"))
		result = outboxtest.Drain(t, tx, registry(send), opts...)
	})
	return result
}

func sent(int64) error { return nil }

// The mail of a sign-up is due an hour later.
func ExampleAdvance() {
	fmt.Println(drained(sent, outboxtest.Advance(time.Hour)))
	// Output:
	// GRANT_CREDIT #1, attempt 1: done
	// SEND_WELCOME #2, attempt 1: done
}

// A test fails after three runs, and not after a thousand, if handlers enqueue each other.
func ExampleMaxRuns() {
	fmt.Println(drained(sent, outboxtest.MaxRuns(3)))
	// Output: GRANT_CREDIT #1, attempt 1: done
}

// A handler finds in its context the fake that the test has put there.
func ExampleContext() {
	type mailer struct{}
	handler := func(ctx context.Context, _ *outbox.Task[Welcome]) error {
		fmt.Println(ctx.Value(mailer{}))
		return nil
	}
	example(func(t testing.TB, tx *sql.Tx) {
		_, err := SendWelcome.Enqueue(t.Context(), tx, Welcome{UserID: 7})
		relaytest.Must(err)
		reg := handlers.New()
		handlers.Leased(reg, SendWelcome, handler)
		outboxtest.Drain(t, tx, reg, outboxtest.Context(context.WithValue(t.Context(), mailer{}, "a fake")))
	})
	// Output: a fake
}

// Both tasks of a sign-up were done.
func ExampleResult_Count() {
	result := drained(sent, outboxtest.Advance(time.Hour))
	fmt.Println(result.Count(relay.OutcomeDone), result.Count(relay.OutcomeFailed))
	// Output: 2 0
}

// A test that wants no error of any handler.
func ExampleResult_Err() {
	result := drained(func(int64) error { return os.ErrDeadlineExceeded }, outboxtest.Advance(time.Hour),
		outboxtest.RetryNow())
	fmt.Println(result.Count(relay.OutcomeDead), result.Err() != nil)
	// Output: 1 true
}

// What a handler told of its progress and its result.
func ExampleNotesOf() {
	example(func(t testing.TB, _ *sql.Tx) {
		task := outboxtest.NewTask(t, SendWelcome, Welcome{UserID: 7}, nil)
		relaytest.Must(task.SetProgress(t.Context(), 0.5, "half of it")) // the handler does
		notes := outboxtest.NotesOf(task)
		fmt.Println(notes.Fraction, notes.Message)
	})
	// Output: 0.5 half of it
}

// A test of each package with task types; its files are committed with the code.
func ExampleGolden() {
	dir, err := os.MkdirTemp("", "")
	relaytest.Must(err)
	defer os.RemoveAll(dir)
	example(func(t testing.TB, _ *sql.Tx) {
		inside(dir, func() { outboxtest.Golden(t, SendWelcome, GrantCredit) })
	})
	files, err := filepath.Glob(filepath.Join(dir, "testdata", "outbox", "*"))
	fmt.Println(len(files), "files", err)
	// Output: 2 files <nil>
}

// inside calls f in a directory, not in CI.
func inside(dir string, f func()) {
	was, err := os.Getwd()
	relaytest.Must(err)
	ci, set := os.LookupEnv("CI")
	relaytest.Must(os.Unsetenv("CI"))
	relaytest.Must(os.Chdir(dir))
	f()
	relaytest.Must(os.Chdir(was))
	if set {
		relaytest.Must(os.Setenv("CI", ci))
	}
}
