package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// promotes are the steps of a poll that promotes heads. All of it but the begin is left out while
// another one has the lock.
func promotes(a *actor) []step {
	locked := false
	return []step{
		{name: "locks the promotion of heads", do: func() (n int, err error) {
			if err = a.begin(); err == nil {
				var got []string
				got, err = a.query(statements["lock heads"], "10000")
				locked = len(got) > 0
			}
			return 0, err
		}},
		{name: "promotes heads", do: func() (int, error) {
			if !locked {
				return 0, nil
			}
			return a.exec(statements["promote heads"], 1000, 0)
		}},
		a.ended(true, nil),
	}
}

// ordered is a database in which heads are promoted.
type ordered struct {
	*database
	undisturbed *actor
}

func newOrderedActors(t *testing.T) (ordered, []*actor) {
	db := newDatabase(t, "postgres")
	return ordered{db, newActor(t, db)}, actors(t, db, 4)
}

// promoteHeads promotes heads while nobody else does.
func (o ordered) promoteHeads(t *testing.T) {
	t.Helper()
	for _, s := range promotes(o.undisturbed) {
		if _, err := s.do(); err != nil {
			t.Fatal(err)
		}
	}
}

// enqueues are the steps of an Enqueue behind the key's other tasks.
func (o ordered) enqueues(a *actor, commit bool) []step {
	return []step{{name: "enqueues", do: func() (int, error) {
		if err := a.begin(); err != nil {
			return 0, err
		}
		_, err := outbox.Enqueue(context.Background(), a.tx, "TX", 1, outbox.OrderedBy("k"))
		return 0, err
	}}, a.ended(commit, nil)}
}

// allRun lets the tasks run one after the other, and says what is wrong with their order. ran says
// how many did before.
func (o ordered) allRun(t *testing.T, ran, want int) string {
	t.Helper()
	for ; ran < want; ran++ {
		o.promoteHeads(t)
		if n := o.Int(t, `SELECT count(*) FROM outbox.task WHERE state <> 'waiting'`); n != 1 {
			return fmt.Sprintf("after %d of %d tasks %d may run", ran, want, n)
		}
		o.Do(t, `DELETE FROM outbox.task WHERE state <> 'waiting'`)
	}
	if left := o.Int(t, `SELECT count(*) FROM outbox.task`); left != 0 || o.Int(t, invariants.Miscounted) != 0 {
		return fmt.Sprintf("%d tasks are left; or the counts are wrong", left)
	}
	return ""
}

const promoteLock = `INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING;`

// Of an ordering key one task at a time may run, and none is forgotten: in every order of two
// relays that promote heads, a run of the first task and an Enqueue behind it.
func TestHeadsOfAKeyArePromotedOnceAndForEachTaskInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	o, all := newOrderedActors(t)
	scenario{all, 4 * len(holderEnds), func(variant int) ([][]step, func() string) {
		o.Do(t, emptyAll+dead(relayA, "1 hour")+promoteLock)
		h := &holder{actor: all[0], leased: variant%2 == 0, task: o.Int(t, `INSERT INTO outbox.task (task_type, ordering_key)
			VALUES ('TX', 'k') RETURNING task_id`)}
		o.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('TX', 'k')`)
		o.promoteHeads(t)
		commit, want := variant/2%2 == 0, 2
		if commit {
			want = 3
		}
		ends := h.ends(holderEnds[variant/4], sql.NullString{}, sql.NullString{String: "k", Valid: true})
		return [][]step{{h.claims(), ends}, o.enqueues(all[1], commit), promotes(all[2]), promotes(all[3])}, func() string {
			if h.done {
				return o.allRun(t, 1, want)
			}
			return o.allRun(t, 0, want)
		}
	}}.everyOrder(t, o.database)
}

// The same where two enqueue under a key without a task: the later id may be the first to commit.
func TestTheFirstHeadOfAKeyIsPromotedOnceInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	o, all := newOrderedActors(t)
	scenario{all, 1, func(int) ([][]step, func() string) {
		o.Do(t, emptyAll+promoteLock)
		return [][]step{o.enqueues(all[0], true), o.enqueues(all[1], true), promotes(all[2]),
			promotes(all[3])}, func() string { return o.allRun(t, 0, 2) }
	}}.everyOrder(t, o.database)
}
