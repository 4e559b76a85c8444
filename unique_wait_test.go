package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// outcome is what an Enqueue has returned.
type outcome struct {
	outbox.Enqueued
	error
}

// waiting begins an Enqueue with the unique key k in a transaction of its own, and returns once
// that waits for a lock: of the type, as pg_locks names it, or of any if that is "". It fails the
// test if the Enqueue does not wait.
func (d database) waiting(t testing.TB, taskType, lock string) <-chan outcome {
	t.Helper()
	tx := begin(t, d.db)
	pid := scan[int](t, tx, `SELECT pg_backend_pid()`)
	done := make(chan outcome, 1)
	go func() {
		got, err := outbox.Enqueue(context.Background(), tx, taskType, 2, outbox.Unique("k"))
		done <- outcome{got, err}
	}()
	for waits := false; !waits; {
		if len(done) > 0 {
			t.Fatalf("it did not wait: %v", <-done)
		}
		waits = scan[bool](t, d.db, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND $2 IN ('', locktype)
			AND NOT granted)`, pid, lock)
	}
	return done
}

func TestOpenTransactionsWithOneKeyWaitForEachOther(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for name, commits := range map[string]bool{"commit": true, "rollback": false} {
		taskType := newType()
		first := begin(t, d.db)
		put(t, first, taskType, 1, outbox.Unique("k"))
		other := begin(t, d.db)
		put(t, other, taskType, 1, outbox.Unique("l")) // another key does not wait
		done := d.waiting(t, taskType, "")
		want := outbox.OutcomeCreated
		if commits {
			want = outbox.OutcomeSkipped
			exec(t, first, `COMMIT`)
		} else {
			end(t, first.Rollback)
		}
		if got := <-done; got.error != nil || got.Outcome != want {
			t.Errorf("after %s of the first: got %v, want %v", name, got, want)
		}
	}
}

// A claim skips the task that an open Enqueue has found waiting, or the run would start before the
// commit and miss it.
func TestNoClaimStartsATaskBeforeTheEnqueueThatFoundItCommits(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, promote := range []bool{false, true} {
		taskType := newType()
		exec(t, d.db, `INSERT INTO outbox.task (task_type, unique_key, run_at)
			VALUES ($1, 'k', now() + $2::boolean::int * interval '1 hour')`, taskType, promote)
		tx := begin(t, d.db)
		if got := put(t, tx, taskType, 1, outbox.Unique("k")); got.Outcome != outbox.OutcomeSkipped {
			t.Fatal(got)
		}
		if promote { // which is not held up, and does not let the claim through
			exec(t, d.db, `UPDATE outbox.task SET state = 'ready' WHERE task_type = $1`, taskType)
		}
		claim := func() int {
			return scan[int](t, d.db, `WITH c AS MATERIALIZED (SELECT task_id FROM outbox.task WHERE state = 'ready'
				AND task_type = $1 FOR UPDATE SKIP LOCKED)
				SELECT count(*) FROM c`, taskType)
		}
		if n := claim(); n != 0 {
			t.Errorf("promoted %v: the claim took %d tasks before the commit, want 0", promote, n)
		}
		end(t, tx.Commit)
		if n := claim(); n != 1 {
			t.Errorf("promoted %v: the claim took %d tasks after the commit, want 1", promote, n)
		}
	}
}

// While promote or other maintenance has changed the row and not committed, the task still waits.
func TestAKeyIsTakenWhileItsTaskIsPromoted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	taskType := newType()
	first := d.enqueue(t, taskType, 1, outbox.Unique("k"), outbox.After(time.Hour))
	promote := begin(t, d.db)
	exec(t, promote, `WITH due AS MATERIALIZED (SELECT task_id FROM outbox.task
		WHERE task_type = $1 FOR NO KEY UPDATE SKIP LOCKED)
		UPDATE outbox.task SET state = 'ready' WHERE task_id = ANY (ARRAY(SELECT task_id FROM due))`, taskType)
	if got := d.enqueue(t, taskType, 2, outbox.Unique("k")); got != (outbox.Enqueued{ID: first.ID,
		Outcome: outbox.OutcomeSkipped}) {
		t.Errorf("got %v, want task %d skipped", got, first.ID)
	}
}

// Written back in the very moment of the look: the row of the snapshot is gone, its successor
// waits.
func TestARetryThatIsWrittenBackDuringAnEnqueueHoldsItsKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE SCHEMA slow; CREATE FUNCTION slow.ne(text, text) RETURNS boolean LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_catalog.pg_advisory_lock_shared(8), pg_catalog.pg_advisory_unlock_shared(8); RETURN pg_catalog.textne($1, $2); END';
		CREATE OPERATOR slow.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = slow.ne)`)
	exec(t, d.db, `ALTER FUNCTION outbox.lock_waiting(bigint)
		SET search_path = slow, pg_catalog`) // it says state <> 'leased'
	taskType := newType()
	first := d.enqueue(t, taskType, 1, outbox.Unique("k"))
	gate, claim := begin(t, d.db), begin(t, d.db)
	exec(t, claim, holders[4].become[0], first.ID)
	exec(t, gate, `SELECT pg_advisory_xact_lock(8)`)
	done := d.waiting(t, taskType, "advisory")
	end(t, claim.Commit)
	end(t, gate.Rollback)
	if got := <-done; got.error != nil || got.Enqueued != (outbox.Enqueued{ID: first.ID,
		Outcome: outbox.OutcomeSkipped}) {
		t.Errorf("got %v and error %v, want task %d skipped", got.Enqueued, got.error, first.ID)
	}
}

func TestEnqueueManyWithTheSameKeysInAnyOrderNeverDeadlocks(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	options := []outbox.Option{outbox.OnConflict(outbox.ConflictSkip), outbox.OnConflict(outbox.ConflictReplace),
		outbox.OnConflict(outbox.ConflictReschedule)}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 8 {
				var tasks []outbox.TaskSpec
				for i := range 60 {
					unique := outbox.Unique(fmt.Sprint(i % 50))
					if i%3 == 0 {
						unique = outbox.UniquePayload()
					}
					tasks = append(tasks, outbox.TaskSpec{Type: fmt.Sprint("T", i%2), Payload: i % 50,
						Options: []outbox.Option{unique, options[random.IntN(3)]}})
				}
				random.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
				err := outbox.InTx(context.Background(), d.db, func(tx *sql.Tx) error {
					_, err := outbox.EnqueueMany(context.Background(), tx, tasks)
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
