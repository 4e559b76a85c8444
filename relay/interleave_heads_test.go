package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/invariants"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/schedule"
)

// promotes are the steps of a poll that promotes heads. All of it but the begin is left out while another one has the lock.
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
			return a.exec(statements["promote heads"], 1000)
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

// allRun lets the tasks run one after the other, and says what is wrong with their order. ran says how many did before.
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

// Of an ordering key one task at a time may run, and none is forgotten: in every order of two relays that promote heads, a run of the
// first task and an Enqueue behind it.
func TestHeadsOfAKeyArePromotedOnceAndForEachTaskInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	o, all := newOrderedActors(t)
	scenario{all, 4 * len(holderEnds), func(variant int) ([][]step, func() string) {
		o.Do(t, emptyAll+dead(relayA, "1 hour")+promoteLock)
		h := &holder{actor: all[0], leased: variant%2 == 0, task: o.Int(t, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('TX', 'k') RETURNING task_id`)}
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
		return [][]step{o.enqueues(all[0], true), o.enqueues(all[1], true), promotes(all[2]), promotes(all[3])}, func() string { return o.allRun(t, 0, 2) }
	}}.everyOrder(t, o.database)
}

// F13: two relays that fire one schedule, which is paused and resumed meanwhile: in every order a firing enqueues one task, or none where it
// was passed over, and the schedule goes on.
func TestAFiringEnqueuesOneTaskInEveryOrder(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t, "postgres")
	all := actors(t, db, 3)
	undisturbed := newActor(t, db)
	fires := func(a *actor, commit bool, fired *int) []step {
		var due time.Time
		paused, locked := false, false
		return []step{
			{name: "begins", do: func() (int, error) {
				if err := a.begin(); err != nil {
					return 0, err
				}
				_, err := a.query(`SELECT now()::text`) // the transaction's time
				return 0, err
			}},
			{name: "locks the schedule", do: func() (int, error) {
				var us, now int64
				err := a.tx.QueryRow(schedule.DueSQL, pq.Array([]string{"tick"}), pq.Array([]string{"definition"}), "10000").
					Scan(new(string), &us, &now, &paused, new(string), new(string))
				if locked = err == nil; err == sql.ErrNoRows {
					err = nil
				}
				due = time.UnixMicro(us)
				return 0, err
			}},
			{name: "fires", do: func() (int, error) {
				if !locked {
					return 0, nil
				}
				last := sql.NullInt64{}
				if !paused {
					last = sql.NullInt64{Int64: due.UnixMicro(), Valid: true}
					if _, err := outbox.Enqueue(context.Background(), a.tx, "FIRED", 1, outbox.RunAt(due)); err != nil {
						return 0, err
					}
				}
				return a.exec(schedule.FiredSQL, "tick", due.Add(1000*time.Hour).UnixMicro(), last)
			}},
			a.ended(commit, func() {
				if locked && !paused {
					*fired++
				}
			}),
		}
	}
	scenario{all, 3, func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll+`INSERT INTO outbox.schedule (name, next_at, catch_up, task_type, payload, spec, timing, definition)
			VALUES ('tick', now() - interval '1 hour', 'once', 'FIRED', '{}', '', 'timing', 'definition')`)
		fired := 0
		pauses := []step{}
		for _, paused := range []bool{true, false} {
			pauses = append(pauses, step{name: fmt.Sprint("pauses: ", paused), do: func() (int, error) {
				return all[2].exec(`UPDATE outbox.schedule SET paused = $2 WHERE name = $1`, "tick", paused)
			}})
		}
		return [][]step{fires(all[0], variant != 1, &fired), fires(all[1], variant != 2, &fired), pauses}, func() string {
			for _, s := range fires(undisturbed, true, &fired) {
				if _, err := s.do(); err != nil {
					t.Fatal(err)
				}
				if s.done != nil {
					s.done(0)
				}
			}
			tasks := db.Int(t, `SELECT count(*) FROM outbox.task`)
			if next := db.Int(t, `SELECT count(*) FROM outbox.schedule WHERE next_at > now() AND NOT paused`); tasks != fired || fired > 1 || next != 1 {
				return fmt.Sprintf("%d tasks were enqueued by %d firings, and the schedule goes on: %v", tasks, fired, next == 1)
			}
			return ""
		}
	}}.everyOrder(t, db)
}
