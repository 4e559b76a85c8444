package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// batches registers a Batch handler that notes its calls: the id of each task with its attempt, as
// in 7:1.
func batches(size int) (reg *handlers.Registry, calls func() []string) {
	var mu sync.Mutex
	var all []string
	reg = handlers.New()
	handlers.Batch(reg, typeBatch, size, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		mu.Lock()
		defer mu.Unlock()
		call := ""
		for _, task := range tasks {
			call += fmt.Sprintf(" %d:%d", task.ID, task.Attempt)
		}
		all = append(all, call[1:])
		return nil
	})
	return reg, func() []string {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(all)
		return all
	}
}

func TestABatchIsOneRowOfTheJournal(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "BATCH", 100)
	reg := handlers.New()
	var journal string
	handlers.Batch(reg, typeBatch, 100, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		journal = db.Text(t, `SELECT count(*) || ' row of ' || sum(cardinality(task_ids)) || ' tasks' FROM outbox.running`)
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 1})
	if journal != "1 row of 100 tasks" {
		t.Errorf("the journal has %s, want 1 row of 100 tasks", journal)
	}
	db.wantRows(t, 0, `outbox.running`)
}

// What the process died of may be any task of its batch. The others of the lane are none of them,
// although their ids are in between. Ids that are far apart are searched for in another way. Tasks that
// were lost once run in batches, as any others, and those that were lost twice one by one.
func TestALostBatchIsKnownByEachOfItsTasks(t *testing.T) {
	t.Parallel()
	const lostOnce, far = "1:2 2:1 3:2 4:1 5:1 6:2", "000"
	for _, c := range []struct {
		name, apart string              // the ids' last digits
		end         func(*sql.Tx) error // of the transaction of the lost claim
		ahead       int                 // the journal has another id than its
		lost        int                 // how often
		want        string
	}{
		{"its claim is gone", far, (*sql.Tx).Rollback, 0, 1, lostOnce},
		// Of a batch from another cluster any transaction of this one may have the id, or none yet.
		{"its claim is committed", "", (*sql.Tx).Commit, 0, 1, lostOnce},
		{"its claim is in the future", far, (*sql.Tx).Rollback, 1_000_000, 1, lostOnce},
		{"its claim is open", "", nil, 0, 1, "1:1 2:1 3:1 4:1 5:1 6:1"},
		{"it was lost twice, with ids far apart", far, (*sql.Tx).Rollback, 0, 2, "1:3, 2:1 4:1 5:1, 3:3, 6:3"},
		{"it was lost twice", "", (*sql.Tx).Rollback, 0, 2, "1:3, 2:1 4:1 5:1, 3:3, 6:3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT (n || $1)::bigint, 'BATCH'
				FROM generate_series(1, 6) n`, c.apart)
			lost := db.begin(t)
			defer lost.Rollback()
			var xid string
			must(lost.QueryRow(`SELECT (pg_current_xact_id()::text::bigint + $1)::text`, c.ahead).Scan(&xid))
			if c.end != nil {
				must(c.end(lost))
			}
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
				SELECT ids[1], gen_random_uuid(), $1, ids, ids[1], ids[3], $2::text::xid8
				  FROM (SELECT ARRAY[1 || $3, 3 || $3, 6 || $3]::bigint[] AS ids) AS batch, generate_series(1, $4)`,
				someUUID, xid, c.apart, c.lost)
			reg, calls := batches(6)
			once(t, db, reg, relay.Config{Workers: 1})
			db.Do(t, `DELETE FROM outbox.running`)
			if got, want := strings.Join(calls(), ", "), strings.ReplaceAll(c.want, ":", c.apart+":"); got != want {
				t.Errorf("calls: %s\nwant: %s", got, want)
			}
		})
	}
}

// The other tasks of a lost batch were begun, whatever becomes of the first, whose id the row of the batch has.
func TestALostBatchIsKnownAlthoughItsFirstTaskIsGone(t *testing.T) {
	t.Parallel()
	for gone, c := range map[string]struct{ statement, job string }{
		"deleted":  {`DELETE FROM outbox.task WHERE task_id = 1`, "reap"},
		"canceled": {`INSERT INTO outbox.cancel (task_id) VALUES (1)`, "hear"},
	} {
		t.Run(gone, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT n, 'BATCH'
				FROM generate_series(1, 4) n`)
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
				VALUES (1, gen_random_uuid(), $1, '{1, 2, 3}', 1, 3, '3'), (-2, gen_random_uuid(), $1, '{-2, -1}', -2, -1,
				'3')`, deadRelay)
			reg, calls := batches(4)
			l := newLoops(resting(t, db, reg, &records{}), "")
			defer l.Close()
			db.Do(t, c.statement)
			l.done(t, c.job)
			once(t, db, reg, relay.Config{Workers: 1})
			if got := strings.Join(calls(), ", "); got != "2:2 3:2 4:1" {
				t.Errorf("calls: %s, want 2:2 3:2 4:1", got)
			}
			l.done(t, "reap")
			db.wantRows(t, 0, `outbox.running`)
		})
	}
}
