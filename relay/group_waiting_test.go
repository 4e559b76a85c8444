package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// Tasks of a group that have not begun are waiting tasks for all that a handler of the group does, and
// one that failed waits for its retry.
func TestTasksOfAGroupThatHaveNotBegunWait(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	enqueue := func(opts ...outbox.Option) func(tx *sql.Tx) (string, error) {
		return func(tx *sql.Tx) (string, error) {
			got, err := outbox.Enqueue(ctx, tx, "TX", payload{N: 9}, opts...)
			return fmt.Sprint(got.Outcome, " ", got.ID), err
		}
	}
	cancel := func(id int64) func(tx *sql.Tx) (string, error) {
		return func(tx *sql.Tx) (string, error) {
			got, err := outbox.Cancel(ctx, tx, id)
			return string(got), err
		}
	}
	later := outbox.After(time.Hour)
	for name, c := range map[string]struct {
		in     int // the task whose handler does it
		do     func(tx *sql.Tx) (string, error)
		result error // of the first task
		want   string
	}{
		"cancel":                    {1, cancel(2), nil, "canceled: 1 3"},
		"cancel the last":           {2, cancel(3), nil, "canceled: 1 2"},
		"cancel its own task":       {2, cancel(2), nil, "not_found: 1 2 3"},
		"cancel a task that ended":  {2, cancel(1), nil, "not_found: 1 2 3"},
		"cancel a task that failed": {3, cancel(1), handlers.RetryAfter(time.Hour, errMisdeed), "canceled: 1 2 3"},
		"cancel, and fail":          {1, cancel(2), handlers.Snooze(time.Hour), "canceled: 1 2 3"},
		"skip":                      {1, enqueue(outbox.Unique("2")), nil, "skipped 2: 1 2 3"},
		"skip for a task that failed": {2, enqueue(outbox.Unique("1")), handlers.RetryAfter(time.Hour, errMisdeed),
			"skipped 1: 1 2 3"},
		"replace": {1, enqueue(outbox.Unique("2"), outbox.OnConflict(outbox.ConflictReplace)), nil,
			"updated 2: 1 3 9"},
		"reschedule": {1, enqueue(outbox.Unique("2"), outbox.OnConflict(outbox.ConflictReschedule), later),
			nil, "updated 2: 1 3"},
		"the key of a task that ended": {2, enqueue(outbox.Unique("1"), later), nil, "created 5: 1 2 3"},
		"the key of its own task":      {1, enqueue(outbox.Unique("1"), later), nil, "created 5: 1 2 3"},
		"the ordering key of another":  {1, enqueue(outbox.OrderedBy("2")), nil, "created 5: 1 2 3 9"},
		"run now": {1, func(tx *sql.Tx) (string, error) {
			got, err := outbox.RunNow(ctx, tx, 2)
			return fmt.Sprint(got), err
		}, nil, "not_scheduled: 1 2 3"},
		"stats": {2, func(tx *sql.Tx) (string, error) {
			got, err := outbox.Stats(ctx, tx)
			return fmt.Sprint(len(got), " type, ", got[0].Ready, " ready"), err
		}, nil, "1 type, 2 ready: 1 2 3"}, // itself, until its group commits, and the next
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.enqueueGroup(t, 3)
			said, calls := "", ""
			once(t, db, grouped(100, within, func(_ context.Context, tx *sql.Tx,
				task *outbox.Task[payload]) (err error) {
				if task.Payload.N == 0 {
					return nil
				}
				calls += fmt.Sprint(" ", task.Payload.N)
				if task.Payload.N == c.in {
					said, err = c.do(tx)
				}
				if task.Payload.N == 1 {
					err = errors.Join(err, c.result)
				}
				return err
			}), relay.Config{Workers: 1})
			db.wantRows(t, 0, `outbox.running`)
			if got := said + ":" + calls; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
