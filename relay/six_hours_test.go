package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// The clock is moved by moving the due times of the tasks. The handlers have no options.
func TestMailArrivesAfterAnOutageOfSixHours(t *testing.T) {
	t.Parallel()
	const each = 20
	db, reg := newDatabase(t), handlers.New()
	var passed time.Duration
	refused, arrived := make(chan int64, 100*each), make(chan int64, 4*each)
	send := func(taskID int64) error {
		if passed <= 6*time.Hour {
			refused <- taskID
			return errors.New("421 not available")
		}
		arrived <- taskID
		return nil
	}
	registerTx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return send(task.ID) })
	handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error { return send(task.ID) })
	db.Enqueue(t, "TX", each)
	db.Enqueue(t, "LEASED", each)
	for passed < 4*24*time.Hour && db.Int(t, `SELECT count(*) FROM outbox.task`) > 0 {
		once(t, db, reg, relay.Config{})
		step := max(time.Second, passed/2)
		passed += step
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - $1::bigint * interval '1 microsecond'`, step.Microseconds())
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	close(arrived)
	mails := map[int64]bool{}
	for id := range arrived {
		if mails[id] {
			t.Errorf("the mail of task %d arrived twice", id)
		}
		mails[id] = true
	}
	if len(mails) != 2*each || len(refused) < 2*each*5 {
		t.Errorf("%d mails arrived after %d refusals, want %d, each refused five times or more", len(mails), len(refused),
			2*each)
	}
	t.Logf("all mail arrived within %v, after %d refusals", passed.Round(time.Minute), len(refused))
}
