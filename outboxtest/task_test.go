package outboxtest_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
)

func TestATaskWithoutALeaseIsThatOfATxHandler(t *testing.T) {
	t.Parallel()
	task, other := outboxtest.NewTask(t, send, payload{7}, nil), outboxtest.NewTask(t, send, payload{7}, nil)
	if task.Type != "SEND" || task.Payload.N != 7 || task.ID == 0 || task.Attempt != 1 || task.MaxAttempts != 20 ||
		task.RunAt.IsZero() || task.CreatedAt.IsZero() || len(task.Key()) != 36 || task.DatabaseID == "" || task.Key() == other.Key() {
		t.Errorf("the task is %+v", task)
	}
	err := task.Complete(t.Context(), func(*sql.Tx) error { panic("called") })
	extended := task.Extend(t.Context(), time.Minute)
	if !errors.Is(err, outbox.ErrNotLeased) || !errors.Is(extended, outbox.ErrNotLeased) {
		t.Errorf("Complete gave %v, Extend %v, want ErrNotLeased", err, extended)
	}
	var zero outbox.TaskType[payload]
	wantFatal(t, failing(t, func(t testing.TB) { outboxtest.NewTask(t, zero, payload{}, nil) }), "outbox.NewTaskType")
	wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Golden(t, nil) }), "outbox.NewTaskType")
}

func TestALeaseRecordsExtend(t *testing.T) {
	t.Parallel()
	var lease outboxtest.Lease
	task := outboxtest.NewTask(t, send, payload{7}, &lease)
	ended, end := context.WithCancelCause(t.Context())
	end(errBoom)
	for _, c := range []struct {
		ctx  context.Context
		d    time.Duration
		want error
	}{{t.Context(), time.Minute, nil}, {t.Context(), 0, outbox.ErrInvalidOption}, {ended, time.Minute, errBoom},
		{t.Context(), time.Hour, nil}} {
		if err := task.Extend(c.ctx, c.d); !errors.Is(err, c.want) {
			t.Errorf("Extend(%v) gave %v, want %v", c.d, err, c.want)
		}
	}
	lease.Err = outbox.ErrLeaseLost
	if err := task.Extend(t.Context(), time.Second); !errors.Is(err, outbox.ErrLeaseLost) {
		t.Errorf("it gave %v, want Lease.Err", err)
	}
	if want := []time.Duration{time.Minute, time.Hour}; !slices.Equal(lease.Extended, want) || lease.Completed {
		t.Errorf("the record is %v, want %v", lease.Extended, want)
	}
}

func TestALeaseRecordsComplete(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		exec(t, db, `DROP SCHEMA outbox CASCADE`) // any database will do
		ended, end := context.WithCancelCause(t.Context())
		end(errBoom)
		var task *outbox.Task[payload]
		for _, c := range []struct {
			name    string
			ctx     context.Context
			fault   error
			noTx    bool
			result  func() error
			want    error
			text    string // in the error
			written string
		}{
			{name: "done", written: "written"},
			{name: "fails", result: func() error { return errBoom }, want: errBoom},
			{name: "is dead", result: func() error { return handlers.Dead(errBoom) }, want: errBoom},
			{name: "runs again", result: func() error { return handlers.RunAgainWith(task, time.Hour, payload{8}) }, written: "written"},
			{name: "runs another again", result: func() error {
				other := *task
				other.ID++
				return handlers.RunAgainWith(&other, 0, payload{8})
			}, text: "RunAgainWith: its payload is for task"},
			{name: "lost", fault: outbox.ErrLeaseLost, want: outbox.ErrLeaseLost},
			{name: "ended", ctx: ended, want: errBoom},
			{name: "no transaction", noTx: true, text: "set Lease.Tx"},
		} {
			tx := begin(t, db)
			lease := &outboxtest.Lease{Err: c.fault}
			if !c.noTx {
				lease.Tx = tx
			}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			var result error
			task = outboxtest.NewTask(t, send, payload{7}, lease)
			err := task.Complete(c.ctx, func(tx *sql.Tx) error {
				exec(t, tx, `INSERT INTO effect VALUES ('written')`)
				if c.result != nil {
					result = c.result()
				}
				return result
			})
			completed := c.want == nil && c.text == ""
			if lease.Completed != completed || completed != (err == nil) ||
				c.want != nil && !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("%s: it is completed: %t; Complete gave %v, want %v %s", c.name, lease.Completed, err, c.want, c.text)
			}
			if want := cmp.Or(err, result); lease.Result != want {
				t.Errorf("%s: the result is %v, want %v", c.name, lease.Result, want)
			}
			wantText(t, tx, c.written, `SELECT string_agg(note, ' ') FROM effect`)
			if !completed {
				continue
			}
			again := task.Complete(t.Context(), func(*sql.Tx) error { panic("called") })
			extended := task.Extend(t.Context(), time.Hour)
			if !errors.Is(again, outbox.ErrLeaseLost) || !errors.Is(extended, outbox.ErrLeaseLost) {
				t.Errorf("%s: later Complete gave %v, Extend %v, want ErrLeaseLost", c.name, again, extended)
			}
		}
	})
}

// After a failure the handler may call Complete once more, in the same transaction.
func TestAFailedCompleteLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		lease := &outboxtest.Lease{Tx: tx}
		task := outboxtest.NewTask(t, send, payload{7}, lease)
		hidden := task.Complete(t.Context(), func(tx *sql.Tx) error {
			exec(t, tx, `INSERT INTO effect VALUES ('hidden')`)
			_, _ = tx.ExecContext(t.Context(), `SELECT 1/0`)
			return nil
		})
		if hidden == nil || lease.Completed || lease.Result == nil {
			t.Errorf("after a hidden failure it gave %v: %v", hidden, lease.Result)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a panic does not go on in the handler")
				}
			}()
			_ = task.Complete(t.Context(), func(tx *sql.Tx) error {
				exec(t, tx, `INSERT INTO effect VALUES ('panic')`)
				panic("at the disco")
			})
		}()
		err := task.Complete(t.Context(), func(tx *sql.Tx) error {
			exec(t, tx, `INSERT INTO effect VALUES ('written')`)
			return nil
		})
		if err != nil || !lease.Completed || lease.Result != nil {
			t.Errorf("at last it gave %v: %v", err, lease.Result)
		}
		wantText(t, tx, "written", `SELECT string_agg(note, ' ') FROM effect`)
	})
}
