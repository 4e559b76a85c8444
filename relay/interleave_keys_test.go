package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
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

// F10: two transactions change something and enqueue under one key, while a relay runs the key's
// task: in every order each change that was committed is seen by a run that started after it,
// whatever comes of a conflict and of the run, and there is one waiting task of the key, or two
// where a run went back.
func TestAChangeIsSeenByALaterRunOfItsKeyInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t, "postgres")
	db.Do(t, `CREATE TABLE change (n int)`)
	all := actors(t, db, 3)
	conflicts := []outbox.Option{outbox.OnConflict(outbox.ConflictSkip), outbox.OnConflict(outbox.ConflictReplace),
		outbox.OnConflict(outbox.ConflictReschedule)}
	key := sql.NullString{String: "k", Valid: true}
	scenario{all, len(conflicts) * len(holderEnds) * 2 * 2, func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll+dead(relayA, "1 hour")+`DELETE FROM change`)
		onConflict, how := conflicts[variant%3], holderEnds[variant/3%3]
		h := &holder{actor: all[0], leased: variant/9%2 == 0, task: db.Int(t, `INSERT INTO outbox.task (task_type, unique_key)
			VALUES ('TX', 'k') RETURNING task_id`)}
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
		steps := [][]step{{h.claims(), reads, h.ends(how, key, sql.NullString{})}, enqueues(all[1], 1, true),
			enqueues(all[2], 2, variant/18 == 0)}
		return steps, func() string {
			waiting := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state IN ('ready', 'scheduled')`)
			if waiting == 0 && slices.ContainsFunc(committed,
				func(n string) bool { return !h.done || !slices.Contains(seen, n) }) {
				return fmt.Sprintf("the changes %v were committed, the run saw %v, and none is to come", committed, seen)
			}
			most := 1
			if h.held && !h.done {
				most = 2
			}
			if waiting > most || db.Int(t, `SELECT count(*) FROM outbox.unique_key`) != 1 ||
				db.Int(t, invariants.Miscounted) != 0 {
				return fmt.Sprintf("%d tasks wait, want %d at most; or the key is not there once, or counts are wrong", waiting,
					most)
			}
			return ""
		}
	}}.everyOrder(t, db)
}
