package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// inOneGroup runs the tasks 1 to 3, which have their ids as payloads, unique keys and ordering keys,
// in one group. It returns what do notes, which their handler calls, and the payloads of all calls.
func inOneGroup(t *testing.T, do func(tx *sql.Tx, n int) (note string, err error)) string {
	t.Helper()
	db := newDatabase(t)
	db.noteTransactions(t)
	for i := 1; i <= 3; i++ {
		db.keyed(t, "TX", i, outbox.Unique(fmt.Sprint(i)), outbox.OrderedBy(fmt.Sprint(i)))
	}
	db.keyed(t, "TX", 0, outbox.Priority(-1)) // so that the relay knows how little a task takes
	var notes, calls []string
	once(t, db, grouped(100, within, func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if task.Payload.N == 0 {
			return nil
		}
		note, err := do(tx, task.Payload.N)
		if note != "" {
			notes = append(notes, note)
		}
		calls = append(calls, fmt.Sprint(task.Payload.N))
		return err
	}), relay.Config{Workers: 1})
	db.wantRows(t, 0, `outbox.running`)
	t.Log("transactions:", db.Int(t, `SELECT count(DISTINCT xid) FROM effect`)) // without groups all is the same
	return strings.Join(notes, ", ") + ": " + strings.Join(calls, " ")
}

// Tasks of a group that have not begun are waiting tasks for all that a handler of the group does.
func TestTasksOfAGroupThatHaveNotBegunWait(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	enqueue := func(tx *sql.Tx, opts ...outbox.Option) (string, error) {
		got, err := outbox.Enqueue(ctx, tx, "TX", payload{N: 9}, opts...)
		return fmt.Sprint(got.Outcome, " ", got.TaskID), err
	}
	cancel := func(tx *sql.Tx, id int64) (string, error) {
		got, err := outbox.Cancel(ctx, tx, id)
		return fmt.Sprint(got), err
	}
	for name, c := range map[string]struct {
		in   int // whose handler does it
		do   func(tx *sql.Tx) (string, error)
		want string
	}{
		"cancel":                   {1, func(tx *sql.Tx) (string, error) { return cancel(tx, 2) }, "canceled: 1 3"},
		"cancel the last":          {2, func(tx *sql.Tx) (string, error) { return cancel(tx, 3) }, "canceled: 1 2"},
		"cancel its own task":      {2, func(tx *sql.Tx) (string, error) { return cancel(tx, 2) }, "not found: 1 2 3"},
		"cancel a task that ended": {2, func(tx *sql.Tx) (string, error) { return cancel(tx, 1) }, "not found: 1 2 3"},
		"cancel, and fail": {1, func(tx *sql.Tx) (string, error) {
			note, err := cancel(tx, 2)
			return note, errors.Join(err, handlers.Snooze(time.Hour))
		}, "canceled: 1 2 3"},
		"skip": {1, func(tx *sql.Tx) (string, error) { return enqueue(tx, outbox.Unique("2")) }, "skipped 2: 1 2 3"},
		"replace": {1, func(tx *sql.Tx) (string, error) {
			return enqueue(tx, outbox.Unique("2"), outbox.OnConflict(outbox.Replace))
		}, "updated 2: 1 3 9"},
		"reschedule": {1, func(tx *sql.Tx) (string, error) {
			return enqueue(tx, outbox.Unique("2"), outbox.OnConflict(outbox.Reschedule), outbox.After(time.Hour))
		}, "updated 2: 1 3"},
		"the key of a task that ended": {2,
			func(tx *sql.Tx) (string, error) {
				return enqueue(tx, outbox.Unique("1"), outbox.After(time.Hour))
			}, "created 5: 1 2 3"},
		"the key of its own task": {1,
			func(tx *sql.Tx) (string, error) {
				return enqueue(tx, outbox.Unique("1"), outbox.After(time.Hour))
			}, "created 5: 1 2 3"},
		"the ordering key of another": {1, func(tx *sql.Tx) (string, error) { return enqueue(tx, outbox.OrderedBy("2")) },
			"created 5: 1 2 3 9"},
		"run now": {1, func(tx *sql.Tx) (string, error) {
			got, err := outbox.RunNow(ctx, tx, 2)
			return fmt.Sprint(got), err
		}, "false: 1 2 3"},
		"stats": {2, func(tx *sql.Tx) (string, error) {
			got, err := outbox.Stats(ctx, tx)
			return fmt.Sprint(len(got), " type, ", got[0].Ready, " ready"), err
		}, "1 type, 2 ready: 1 2 3"}, // itself, until its group commits, and the next
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := inOneGroup(t, func(tx *sql.Tx, n int) (string, error) {
				if n != c.in {
					return "", nil
				}
				return c.do(tx)
			})
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// A task of a group that failed waits for its retry when the next handler is called.
func TestATaskOfAGroupThatFailedWaitsForItsRetry(t *testing.T) {
	t.Parallel()
	got := inOneGroup(t, func(tx *sql.Tx, n int) (string, error) {
		switch n {
		case 1:
			return "", handlers.RetryAfter(time.Hour, errors.New("failed"))
		case 2:
			got, err := outbox.Enqueue(t.Context(), tx, "TX", payload{N: 9}, outbox.Unique("1"))
			return fmt.Sprint(got.Outcome), err
		}
		got, err := outbox.Cancel(t.Context(), tx, 1)
		return fmt.Sprint(got), err
	})
	if want := "skipped, canceled: 1 2 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Each task of a group has a RunEnd, with what its own call took.
func TestEachTaskOfAGroupHasARunEnd(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for i := 1; i <= 4; i++ {
		db.keyed(t, "TX", i)
	}
	db.keyed(t, "TX", 0, outbox.Priority(-1))
	took := map[int64]time.Duration{}
	var mu sync.Mutex
	var ends []relay.RunEnd
	once(t, db, grouped(100, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		start := time.Now()
		defer func() { took[task.ID] = time.Since(start) }()
		switch task.Payload.N {
		case 2:
			return handlers.Dead(errors.New("failed"))
		case 3:
			_, err := outbox.Cancel(ctx, tx, 4)
			return err
		}
		return nil
	}), relay.Config{Workers: 1, Observers: []relay.Observer{{Ended: func(e relay.RunEnd) {
		mu.Lock()
		defer mu.Unlock()
		ends = append(ends, e)
	}}}})
	var got []string
	var returned time.Time // the call before
	for _, e := range ends {
		for _, task := range e.Tasks {
			got = append(got, fmt.Sprint(task.TaskID, " ", task.Outcome, " ", task.Attempt))
			switch {
			case len(e.Tasks) != 1 || e.Called.IsZero() != (task.TaskID == 4):
				t.Errorf("task %d is one of %d, called at %v", task.TaskID, len(e.Tasks), e.Called)
			case task.TaskID == 4:
			case e.Called.Before(returned) || e.Handled < took[task.TaskID]:
				t.Errorf("task %d: called at %v, when the call before returned at %v; handled in %v, at least %v", task.TaskID,
					e.Called, returned, e.Handled, took[task.TaskID])
			default:
				returned = e.Called.Add(e.Handled)
			}
		}
	}
	if want := "5 done 1, 1 done 1, 2 dead 1, 3 done 1, 4 put_off 1"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}
