package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/invariants"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// ended is the end of an actor's transaction, as a step.
func (a *actor) ended(commit bool, then func()) step {
	name := "rolls back"
	if commit {
		name = "commits"
	}
	return step{name: name, do: func() (int, error) {
		tx := a.tx
		a.tx = nil
		if !commit {
			return 0, tx.Rollback()
		}
		return 0, tx.Commit()
	}, done: func(int) {
		if commit && then != nil {
			then()
		}
	}}
}

// F10: two transactions change something and enqueue under one key, while a relay runs the key's task: in every order each change that was committed
// is seen by a run that started after it, whatever comes of a conflict and of the run, and there is one waiting task of the key, or two
// where a run went back.
func TestAChangeIsSeenByALaterRunOfItsKeyInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t, "postgres")
	db.Do(t, `CREATE TABLE change (n int)`)
	all := actors(t, db, 3)
	conflicts := []outbox.Option{outbox.OnConflict(outbox.Skip), outbox.OnConflict(outbox.Replace), outbox.OnConflict(outbox.Reschedule)}
	key := sql.NullString{String: "k", Valid: true}
	scenario{all, len(conflicts) * len(holderEnds) * 2 * 2, func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll+dead(relayA, "1 hour")+`DELETE FROM change`)
		onConflict, how := conflicts[variant%3], holderEnds[variant/3%3]
		h := &holder{actor: all[0], leased: variant/9%2 == 0, task: db.Int(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('TX', 'k') RETURNING task_id`)}
		var seen, committed []string
		enqueues := func(a *actor, n int, commit bool) []step {
			return []step{
				{name: fmt.Sprint("changes ", n), do: func() (int, error) {
					if err := a.begin(); err != nil {
						return 0, err
					}
					return a.exec(`INSERT INTO change VALUES ($1)`, n)
				}},
				{name: "enqueues", do: func() (int, error) {
					_, err := outbox.Enqueue(context.Background(), a.tx, "TX", n, outbox.Unique("k"), onConflict)
					return 0, err
				}},
				a.ended(commit, func() { committed = append(committed, fmt.Sprint(n)) }),
			}
		}
		reads := step{name: "reads", do: func() (n int, err error) {
			seen, err = h.query(`SELECT n::text FROM change`)
			return 0, err
		}}
		steps := [][]step{{h.claims(), reads, h.ends(how, key, sql.NullString{})}, enqueues(all[1], 1, true), enqueues(all[2], 2, variant/18 == 0)}
		return steps, func() string {
			waiting := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state IN ('ready', 'scheduled')`)
			if waiting == 0 && slices.ContainsFunc(committed, func(n string) bool { return !h.done || !slices.Contains(seen, n) }) {
				return fmt.Sprintf("the changes %v were committed, the run saw %v, and none is to come", committed, seen)
			}
			most := 1
			if h.held && !h.done {
				most = 2
			}
			if waiting > most || db.Int(t, `SELECT count(*) FROM outbox.unique_key`) != 1 || db.Int(t, invariants.Miscounted) != 0 {
				return fmt.Sprintf("%d tasks wait, want %d at most; or the key is not there once, or counts are wrong", waiting, most)
			}
			return ""
		}
	}}.everyOrder(t, db)
}

// I1: two redrives and a purge of one dead letter: in every order one of them at most has it, and who has it says so; the rest find nothing.
func TestADeadLetterIsMovedOnceInEveryOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	all := actors(t, db, 3)
	scenario{all, 8, func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll)
		id := db.Int(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('TX', 'k') RETURNING task_id`)
		db.Do(t, `WITH gone AS (DELETE FROM outbox.task RETURNING *)
			INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload, unique_key)
			SELECT task_id, run_at, created_at, priority, 1, 1, 'handler', task_type, payload, unique_key FROM gone`)
		redriven, purged, client := 0, 0, relaytest.Admin(t, db.DB)
		moves := func(i int, name string, total *int, move func(tx *sql.Tx) (int, error)) []step {
			a, moved := all[i], 0
			return []step{
				{name: "begins", do: func() (int, error) { return 0, a.begin() }},
				{name: name, do: func() (n int, err error) { moved, err = move(a.tx); return 0, err }},
				a.ended(variant>>i&1 == 0, func() { *total += moved }),
			}
		}
		redrive := func(tx *sql.Tx) (int, error) {
			ids, _, err := client.In(tx).Redrive(context.Background(), admin.Filter{IDs: []int64{int64(id)}}, admin.Page{})
			return len(ids), err
		}
		steps := [][]step{moves(0, "redrives", &redriven, redrive), moves(1, "purges", &purged, func(tx *sql.Tx) (int, error) {
			ids, _, err := client.In(tx).Purge(context.Background(), admin.Filter{Type: "TX"}, admin.Page{})
			return len(ids), err
		}), moves(2, "redrives again", &redriven, redrive)}
		return steps, func() string {
			tasks, letters := db.Int(t, `SELECT count(*) FROM outbox.task`), db.Int(t, `SELECT count(*) FROM outbox.dead_task`)
			if tasks != redriven || redriven+purged+letters != 1 || db.Int(t, invariants.Miscounted) != 0 {
				return fmt.Sprintf("%d were redriven and %d purged; there are %d tasks and %d dead letters", redriven, purged, tasks, letters)
			}
			return ""
		}
	}}.everyOrder(t, db)
}
