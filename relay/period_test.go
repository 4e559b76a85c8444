package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A key is taken for its period after each end of its task, also in the handler that ends it and for who
// enqueues at the same time. Its row stays as long, and goes then.
func TestAKeyIsTakenForItsPeriodWhateverBecomesOfItsTask(t *testing.T) {
	unique := outbox.Unique("k", outbox.For(time.Hour))
	eachKind(t, func(t *testing.T, kind string, db *database) {
		results := map[string]error{"DONE": nil, "DISCARDED": handlers.Discard(errors.New("boom")),
			"DEAD": handlers.Dead(errors.New("boom"))}
		reg := handlers.New()
		var within noted[outbox.Outcome]
		for name, result := range results {
			relaytest.Register(reg, kind, name, 1, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				if tx != nil {
					e, err := outbox.Enqueue(ctx, tx, tasks[0].Type, payload{N: 2}, unique)
					must(err)
					within.add(e.Outcome)
				}
				return result
			})
		}
		first := map[string]int64{}
		for name := range results {
			first[name] = db.keyed(t, name, 1, unique).ID
		}
		first["EXPIRED"] = db.keyed(t, "EXPIRED", 1, unique, outbox.ExpiresAt(time.Now().Add(-2*time.Hour))).ID
		first["CANCELED"] = db.keyed(t, "CANCELED", 1, unique).ID
		must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := outbox.Cancel(t.Context(), tx, first["CANCELED"])
			return err
		}))
		once(t, db, reg, relay.Config{})
		l := newLoops(resting(t, db, reg, &records{}), "")
		defer l.Close()
		l.done(t, "expire")
		l.done(t, "sweep keys")
		db.want(t, 0, "tasks", `SELECT count(*) FROM outbox.task`)
		for name, id := range first {
			for _, conflict := range []outbox.Conflict{outbox.ConflictSkip, outbox.ConflictReplace,
				outbox.ConflictReschedule} {
				if e := db.keyed(t, name, 2, unique, outbox.OnConflict(conflict)); e.ID != id ||
					e.Outcome != outbox.OutcomeSkipped {
					t.Errorf("%s, %s: %v, want %d skipped", name, conflict, e, id)
				}
			}
		}
		for _, o := range within.list() {
			if o != outbox.OutcomeSkipped {
				t.Errorf("within the handler's transaction: %v", o)
			}
		}
		db.Do(t, `UPDATE outbox.unique_key SET keep_until = now()`)
		l.done(t, "sweep keys")
		db.want(t, 0, "keys", `SELECT count(*) FROM outbox.unique_key`)
		if e := db.keyed(t, "DONE", 2, unique); e.Outcome != outbox.OutcomeCreated {
			t.Errorf("after the period: %v", e)
		}
	})
}

// Of many that enqueue one key while its tasks run and end, one has created a task.
func TestOfAPeriodOneTaskRuns(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var ran noted[string]
	relaytest.Register(reg, "tx", "X", 1, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		ran.add(fmt.Sprint(tasks[0].Payload.N))
		if tasks[0].Attempt == 1 {
			return errors.New("boom")
		}
		return nil
	}, relaytest.RetrySoon())
	run(t, db, reg, relay.Config{PollInterval: 20 * time.Millisecond})
	const keys, each = 20, 15
	var all sync.WaitGroup
	for range each {
		all.Go(func() {
			for n := range keys {
				db.keyed(t, "X", n, outbox.UniquePayload(outbox.For(time.Hour)))
			}
		})
	}
	all.Wait()
	db.Emptied(t, time.Minute)
	got := ran.list()
	slices.Sort(got)
	if len(got) != 2*keys || len(slices.Compact(got)) != keys {
		t.Errorf("%d runs of %v, want two of each of %d", len(got), slices.Compact(got), keys)
	}
}

// A redrive within the period takes the key of its own task, and of no other. A retyped task takes it
// along.
func TestWhoHasAKeyForAPeriodKeepsItInARedriveAndARetype(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	unique := outbox.Unique("k", outbox.For(time.Hour))
	own := db.keyed(t, "X", 1, unique)
	die(t, db)
	if got, err := client.Redrive(t.Context(), admin.Filter{IDs: []int64{own.ID}}, admin.Bulk{}); err != nil ||
		len(got.IDs) != 1 {
		t.Errorf("its own: %v, %v", got, err)
	}
	if got, err := client.Retype(t.Context(), admin.Filter{IDs: []int64{own.ID}}, "Y", admin.Bulk{}); err != nil ||
		len(got.IDs) != 1 {
		t.Errorf("retype: %v, %v", got, err)
	}
	db.Do(t, `DELETE FROM outbox.task`)
	if e := db.keyed(t, "Y", 2, unique); e.Outcome != outbox.OutcomeSkipped {
		t.Errorf("under the new type: %v", e)
	}
	old := db.keyed(t, "X", 2, outbox.Unique("k")) // the old type has it no more
	die(t, db)
	newer := db.keyed(t, "X", 3, unique)
	db.Do(t, `DELETE FROM outbox.task`) // it is done
	got, err := client.Redrive(t.Context(), admin.Filter{IDs: []int64{old.ID}}, admin.Bulk{})
	if err != nil || len(got.Skipped) != 1 || newer.Outcome != outbox.OutcomeCreated {
		t.Errorf("beside %v: redrive %v, %v", newer, got, err)
	}
	if found, err := client.Defects(t.Context(), admin.RepairOptions{}); err != nil || len(found) != 0 {
		t.Errorf("defects: %v, %v", found, err)
	}
}
