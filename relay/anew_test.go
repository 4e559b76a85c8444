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

// A task that is replaced begins anew: with all attempts of the new enqueue, whatever was counted
// against the payload before.
func TestAReplacedTaskBeginsAnew(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var calls []string
			reg := handlers.New()
			each(reg, kind, func(_ context.Context, task *outbox.Task[payload]) error {
				calls = append(calls, fmt.Sprintf("%d: %d/%d %d %q", task.Payload.N, task.Attempt, task.MaxAttempts,
					len(task.FailedAttempts), task.LastError))
				return errors.New("failed")
			}, handlers.MaxAttempts(3), handlers.Backoff(constant(time.Hour)))
			again := func() {
				db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE state = 'scheduled'`)
				once(t, db, reg, relay.Config{Workers: 1})
			}
			first := db.keyed(t, kind, 1, outbox.Unique("k"), outbox.MaxAttempts(2), outbox.Timeout(time.Minute))
			again()
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), gen_random_uuid()
				FROM outbox.task`)
			for range 2 {
				got := db.keyed(t, kind, 2, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictReplace))
				if got.ID != first.ID || got.Outcome != outbox.OutcomeUpdated {
					t.Fatalf("got %v, want task %d updated", got, first.ID)
				}
			}
			db.wantText(t, "2 null 0 null null", `SELECT format('%s %s %s %s %s', payload ->> 'N', coalesce(max_attempts::text,
				'null'), attempt, coalesce(last_error, 'null'), coalesce(timeout_ms::text, 'null')) FROM outbox.task`)
			for range 3 {
				again()
			}
			want := `[1: 1/2 0 "" 2: 1/3 0 "" 2: 2/3 1 "failed" 2: 3/3 2 "failed"]`
			if got := fmt.Sprint(calls); got != want {
				t.Errorf("got the calls %s\nwant %s", got, want)
			}
			db.wantText(t, "failed replaced failed failed failed", `SELECT string_agg(e ->> 'event', ' ' ORDER BY i)
				FROM outbox.dead_task, jsonb_array_elements(timeline) WITH ORDINALITY AS a (e, i)`)
			db.wantRows(t, 0, `outbox.running`)
		})
	}
}

// A task whose payload was replaced while the claim of a run that failed was gone keeps the new one.
func TestAFailureOutsideOfItsClaimLeavesAReplacedPayload(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.keyed(t, "TX", 1, outbox.Unique("k"))
	var calls []int
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		calls = append(calls, task.Payload.N)
		if task.Payload.N == 1 {
			if err := tx.Rollback(); err != nil {
				return err
			}
			db.keyed(t, "TX", 2, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictReplace))
			return errors.New("failed")
		}
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 1})
	once(t, db, reg, relay.Config{Workers: 1})
	if fmt.Sprint(calls) != "[1 2]" {
		t.Errorf("the handler got %v, want 1 and then 2", calls)
	}
}
