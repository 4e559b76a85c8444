package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// A time.Duration ends at 292 years: the wait for this task does not fit one.
func TestATaskOfTheYear9999WaitsAndHindersNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', '9999-12-31')`)
	db.Enqueue(t, "TX", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := relay.New(db.DB, all(), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RunOnce(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("RunOnce: %v, %v; want it to end by itself", err, ctx.Err())
	}
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`); n != 1 {
		t.Errorf("%d tasks are scheduled, want 1", n)
	}
}

func TestTimesThatARelayCouldNotReadAreRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, column := range []string{"run_at", "created_at", "attempted_at"} {
		for _, value := range []string{"infinity", "-infinity", "294276-12-01"} {
			_, err := db.ExecContext(t.Context(), `INSERT INTO outbox.task (task_type, `+column+`) VALUES ('TX', $1)`, value)
			if err == nil || !strings.Contains(err.Error(), "task_time_check") {
				t.Errorf("%s = %s: %v, want it refused by task_time_check", column, value, err)
			}
		}
	}
}

func TestATypeWhoseClaimsAreRefusedDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$`)
	db.Do(t, `CREATE TRIGGER keep BEFORE DELETE ON outbox.task FOR EACH ROW WHEN (OLD.task_type = 'TX') EXECUTE FUNCTION keep()`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, priority) VALUES ('TX', '{}', -5)`)
	r := run(t, db, all(), relay.Config{PollInterval: 20 * time.Millisecond})
	eventually(t, 10*time.Second, "the refusal is logged", func() bool { return r.Log.Count("cannot be claimed") > 0 })
	for range 20 {
		db.Enqueue(t, "BATCH", 1)
		eventually(t, time.Second, "the other type's task is done", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'BATCH'`) == 0
		})
	}
	if n := r.Log.Count("cannot be claimed"); n != 1 {
		t.Errorf("the refusal was logged %d times, want once", n)
	}
	if n := r.Log.Count("cannot be worked with"); n != 0 {
		t.Errorf("the refusal was taken for an outage %d times", n)
	}
	db.Do(t, `DROP TRIGGER keep ON outbox.task`)
	db.Emptied(t, 10*time.Second)
}

func TestRetryAfterOfABatchHoldsForEachOfItsTasks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int32
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error {
		calls.Add(1)
		return handlers.RetryAfter(time.Hour, errors.New("429"))
	})
	db.Enqueue(t, "BATCH", 4)
	once(t, db, reg, relay.Config{})
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1: the receiver asked for an hour's rest", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND attempt = 1 AND run_at > now() + interval '59 minutes'`); n != 4 {
		t.Errorf("%d tasks wait for an hour, want 4\n%s", n, db.Dump(t))
	}
}
