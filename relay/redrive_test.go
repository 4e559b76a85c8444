package relay_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// die runs tasks of the type X, each of which dies.
func die(t testing.TB, db *database) {
	t.Helper()
	reg := handlers.New()
	kinds["tx"](reg, "X", func(*outbox.Task[payload]) error { return handlers.Dead(errAlways) })
	once(t, db, reg, relay.Config{})
}

func (db *database) redrive(t testing.TB, ids ...int64) {
	t.Helper()
	db.redriveSome(t, ids, nil)
}

// redriveSome redrives two kinds of dead letters: those that are, and those that are skipped.
func (db *database) redriveSome(t testing.TB, ids, skipped []int64) {
	t.Helper()
	both := admin.DeadFilter{IDs: slices.Concat(ids, skipped)}
	got, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), both, admin.Bulk{})
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(got.IDs)), ids) || !slices.Equal(got.Skipped, skipped) {
		t.Fatalf("Redrive: got %v, %v, want %v and %v skipped", got, err, ids, skipped)
	}
}

func TestARedrivenTaskHasItsUniqueKeyAgain(t *testing.T) {
	t.Parallel()
	for name, unique := range map[string]outbox.Option{"Unique": outbox.Unique("k"),
		"UntilDone": outbox.Unique("k", outbox.UntilDone()), "UniquePayload": outbox.UniquePayload()} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			old := db.keyed(t, "X", 1, unique)
			die(t, db)
			if name != "UntilDone" { // the keys were swept
				db.Do(t, `DELETE FROM outbox.unique_key`)
			}
			db.redrive(t, old.ID)
			for want, option := range map[outbox.Outcome]outbox.Option{outbox.OutcomeSkipped: outbox.OnConflict(outbox.ConflictSkip),
				outbox.OutcomeUpdated: outbox.OnConflict(outbox.ConflictReplace)} {
				if e := db.keyed(t, "X", 1, unique, option); e.ID != old.ID || e.Outcome != want {
					t.Errorf("Enqueue: got %v, want %v of task %d", e, want, old.ID)
				}
			}
			die(t, db)
			newer := db.keyed(t, "X", 1, unique)
			db.redriveSome(t, nil, []int64{old.ID})
			if e := db.keyed(t, "X", 1, unique); e.ID != newer.ID || e.Outcome != outbox.OutcomeSkipped ||
				newer.Outcome != outbox.OutcomeCreated {
				t.Errorf("with a newer task %v: got %v, want it skipped", newer, e)
			}
			die(t, db)
			db.redriveSome(t, []int64{old.ID}, []int64{newer.ID}) // of two with one key the first to die
			got, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{WithoutKey: true})
			if err != nil || !slices.Equal(got.IDs, []int64{newer.ID}) || got.Skipped != nil {
				t.Errorf("without its key: got %v, %v, want task %d", got, err, newer.ID)
			}
			if e := db.keyed(t, "X", 1, unique); e.ID != old.ID || e.Outcome != outbox.OutcomeSkipped {
				t.Errorf("of two redriven ones the key is with %v, want %d", e, old.ID)
			}
			db.want(t, 1, "tasks with a key and one without", `SELECT count(DISTINCT unique_key) FROM outbox.task
				HAVING count(*) = 2`)
			// The key of a task that runs is free, unless it keeps the key until it is done.
			die(t, db)
			running := db.keyed(t, "X", 1, unique)
			if name == "UniquePayload" {
				db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()
					WHERE task_id = $1`, running.ID)
			} else {
				claim := db.begin(t)
				defer claim.Rollback()
				if _, err := claim.Exec(`DELETE FROM outbox.task WHERE task_id = $1`, running.ID); err != nil {
					t.Fatal(err)
				}
			}
			if name == "UntilDone" {
				db.redriveSome(t, nil, []int64{old.ID})
			} else {
				db.redrive(t, old.ID)
			}
		})
	}
}

func TestRedriveAndEnqueueManyOfTheSameKeysDoNotDeadlock(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	var tasks []outbox.TaskSpec
	for n := range 60 {
		for _, unique := range []outbox.Option{outbox.UniquePayload(), outbox.Unique(fmt.Sprint(n))} {
			tasks = append(tasks, outbox.TaskSpec{Type: "X", Payload: payload{N: n}, Options: []outbox.Option{unique}})
		}
	}
	many := func() {
		shuffled := slices.Clone(tasks)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, shuffled)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for range 25 {
		db.Do(t, `DELETE FROM outbox.task`)
		many()
		db.Do(t, `WITH gone AS (DELETE FROM outbox.task RETURNING *)
			INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type,
			payload, unique_key)
			SELECT task_id, run_at, created_at, 0, 1, 1, 'handler', task_type, payload, unique_key FROM gone`)
		var all sync.WaitGroup
		all.Go(many)
		all.Go(many)
		if _, err := client.Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{}); err != nil {
			t.Error(err)
		}
		all.Wait()
	}
}
