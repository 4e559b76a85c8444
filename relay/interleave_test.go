package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// lifecycle is what the two relays of a schedule do, and a naive model of what must come of it.
type lifecycle struct {
	t       *testing.T
	db      *database
	a, b    *actor
	task    int
	runsOut bool // a's lease runs out by itself, whatever its heartbeat says

	place   string // ready, scheduled, done, dead, or the token of the lease
	beaten  bool   // a's relay is alive
	scanned bool   // b's scan found a's relay dead, with leases
	wrong   string // what was not as it must be
}

const (
	relayA, relayB = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
	tokenA, tokenB = "aaaaaaaa-0000-4000-8000-00000000000a", "bbbbbbbb-0000-4000-8000-00000000000b"
)

// check compares the step's effect and the task's place with the model.
func (l *lifecycle) check(step string, changed int, should bool) {
	if (changed == 1) != should || changed > 1 {
		l.wrong += fmt.Sprintf("%s changed %d rows, want it to change the task: %v; ", step, changed, should)
	}
	got := l.db.Text(l.t, `SELECT coalesce((SELECT CASE WHEN state = 'leased' THEN lease_token::text ELSE state END
		FROM outbox.task WHERE task_id = $1),
		(SELECT 'dead' FROM outbox.dead_task WHERE task_id = $1), 'done')`, l.task)
	if got != l.place {
		l.wrong += fmt.Sprintf("%s: the task is %s, want %s; ", step, got, l.place)
	}
}

func (l *lifecycle) lease(a *actor, who, relayID, token string, lease time.Duration) step {
	return step{name: who + " leases", do: func() (int, error) {
		return a.leases("LEASED", relayID, token, lease)
	}, done: func(n int) {
		should := l.place == "ready"
		if should {
			l.place = token
		}
		l.check(who+" leases", n, should)
	}}
}

// leases leases a task, and notes its place.
func (a *actor) leases(taskType, relayID, token string, length time.Duration) (n int, err error) {
	lease := leaseOf(taskType, 1, relayID, token, length, nil, 0)
	tasks, err := a.query(`SELECT tasks FROM (`+lease.query+`) AS l`, lease.args...)
	if len(tasks) > 0 {
		a.place = strings.Split(tasks[0], "\t")[1]
	}
	return len(tasks), err
}

// endLease ends the lease of a task: it is done, as before, waits for a retry, or is a dead letter.
func (a *actor) endLease(how string, task int, token string, wait time.Duration, key sql.NullString) (int, error) {
	switch how {
	case "finishes":
		lost, err := a.query(store.FinishSQL, pq.Array([]int{task}), pq.Array([]string{a.place}),
			pq.Array([]string{token}), pq.Array([]int{1}))
		return 1 - len(lost), err
	case "gives back":
		return a.exec(statements["return lease"], task, token, "ready", 0, nil, nil, 0, key, nil)
	case "fails":
		return a.exec(statements["return lease"], task, token, "scheduled", 1, "error", nil, wait.Microseconds(), key, nil)
	}
	return a.exec(statements["dead lease"], task, token, `{"attempt": 1, "reason": "attempts"}`, 1, nil)
}

// end is a step of one relay that ends the lease of token, if it still is the task's.
func (l *lifecycle) end(a *actor, who, token, name string) step {
	return step{name: who + " " + name, do: func() (int, error) {
		return a.endLease(name, l.task, token, time.Hour, sql.NullString{})
	}, done: func(n int) {
		should := l.place == token
		if should {
			l.place = map[string]string{"finishes": "done", "fails": "scheduled", "gives back": "ready", "buries": "dead"}[name]
		}
		l.check(who+" "+name, n, should)
	}}
}

func (l *lifecycle) beat() step {
	return step{name: "A beats", do: func() (int, error) {
		return l.a.exec(sent["heartbeat"], relayA, "host", 1, (5 * time.Minute).Microseconds(), pq.Array([]string{"LEASED"}),
			1, 0, "{}", "", "{}", false)
	}, done: func(int) { l.beaten = true }}
}

func (l *lifecycle) scan() step {
	return step{name: "B scans", do: func() (int, error) {
		if err := l.b.begin(); err != nil {
			return 0, err
		}
		return l.b.exec("WITH dead AS ("+statements["dead relays"]+") SELECT FROM dead WHERE leases > 0", relayB)
	}, done: func(n int) {
		l.scanned = n == 1
		if want := !l.beaten && l.place == tokenA; l.scanned != want {
			l.wrong += fmt.Sprintf("B found A dead with leases: %v, want %v; ", l.scanned, want)
		}
	}}
}

func (l *lifecycle) steal() step {
	return step{name: "B takes over", do: func() (n int, err error) {
		if l.scanned {
			if n, err = l.b.exec(statements["take over"], pq.Array([]string{relayA})); err != nil {
				return 0, err
			}
		}
		ended, err := l.b.exec(statements["leases end"])
		return n + ended, errors.Join(err, l.b.commit())
	}, done: func(n int) {
		should := l.place == tokenA && (l.scanned || l.runsOut)
		if should {
			l.db.Due(l.t) // a takeover may let the task wait
			l.db.Do(l.t, statements["promote scheduled"], "LEASED", 1)
			l.place = "ready"
		}
		l.check("B takes over", n, should)
	}}
}

// F7, I1, I4: interleavings of what a holder and a rescuer do, with OUTBOX_TEST_LONG=1 all 252,
// with the relay's own statements: no transition is made by a token that is not the task's any
// more, and the task is in one place at each moment.
func testEveryInterleaving(t *testing.T) {
	db := newDatabase(t)
	all := actors(t, db, 2)
	a, b := all[0], all[1]
	ends := [][]string{{"finishes", "fails", "gives back"}, {"fails", "gives back", "finishes"},
		{"gives back", "buries", "finishes"}}
	scenario{all, 4, func(variant int) ([][]step, func() string) {
		i, runsOut := variant%3, variant == 3
		l := &lifecycle{t: t, db: db, a: a, b: b, runsOut: runsOut, place: "ready"}
		db.Do(t, emptyAll+dead(relayA, "-1 second")+dead(relayB, "1 hour"))
		l.task = db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ('LEASED') RETURNING task_id`)
		lease := time.Duration(0)
		if runsOut {
			lease = time.Microsecond
		}
		end := ends[i]
		return [][]step{
				{l.lease(a, "A", relayA, tokenA, lease), l.beat(), l.end(a, "A", tokenA, end[0]), l.end(a, "A", tokenA, end[1]),
					l.end(a, "A", tokenA, end[2])},
				{l.scan(), l.steal(), l.lease(b, "B", relayB, tokenB, time.Hour), l.end(b, "B", tokenB, end[1]),
					l.end(b, "B", tokenB, end[2])},
			}, func() string {
				if n := db.Int(t, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.dead_task)`); (n == 0) != (l.place == "done") || n > 1 {
					l.wrong += fmt.Sprintf("the task is in %d tables", n)
				}
				return l.wrong
			}
	}}.everyOrder(t, db)
}

// holder is a session that claims one task and ends the claim, with the relay's statements.
type holder struct {
	*actor
	task   int
	leased bool
	held   bool // it has claimed the task
	done   bool // and finished it
}

// holderEnds are the ways in which a claim ends: the task is done, waits as before, or waits for a retry.
var holderEnds = []string{"finishes", "gives back", "fails"}

func (h *holder) claims() step {
	return step{name: "claims", do: func() (int, error) {
		if h.leased {
			n, err := h.leases("TX", relayA, tokenA, 0)
			h.held = n == 1
			return 0, err
		}
		if err := h.begin(); err != nil {
			return 0, err
		}
		tasks, err := h.query(statements["claim one"], "TX", h.task)
		h.held = len(tasks) == 1
		return 0, err
	}}
}

// writtenBack is what a relay writes back of the task, in short.
const writtenBack = `INSERT INTO outbox.task (task_id, task_type, state, run_at, attempt, attempted_at, unique_key,
	ordering_key) OVERRIDING SYSTEM VALUE
	VALUES ($1, 'TX', 'scheduled', clock_timestamp(), 1, now(), $2, $3)`

func (h *holder) ends(how string, uniqueKey, orderingKey sql.NullString) step {
	return step{name: how, do: func() (n int, err error) {
		h.done = h.done || h.held && how == "finishes"
		if !h.leased {
			if h.held && how == "fails" {
				if _, err := h.exec(writtenBack, h.task, uniqueKey, orderingKey); err != nil {
					return 0, err
				}
			}
			if h.held && how != "gives back" {
				return 0, h.commit()
			}
			tx := h.tx
			h.tx = nil
			return 0, tx.Rollback()
		}
		if !h.held {
			return 0, nil
		}
		n, err = h.endLease(how, h.task, tokenA, 0, orderingKey)
		if err == nil && n != 1 {
			err = fmt.Errorf("the end of its lease changed %d rows", n)
		}
		return n, err
	}}
}

// doAll does the steps one after the other.
func doAll(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		if _, err := s.do(); err != nil {
			t.Fatal(err)
		}
	}
}

// hears are the two statements with which a relay removes tasks that were canceled and wait.
func hears(a *actor, task int) []step {
	asked := false
	return []step{
		{name: "a relay hears", do: func() (int, error) {
			found, err := a.query(statements["hear"], pq.Array([]int{}), pq.Array([]int{}), pq.Array([]string{}))
			asked = len(found) > 0
			return 0, err
		}},
		{name: "and removes", do: func() (int, error) {
			if !asked {
				return 0, nil
			}
			return a.exec(statements["remove canceled"], pq.Array([]int{task}))
		}},
	}
}

// A Cancel that was committed ends the task, and what it answered is so, whenever it comes between
// a claim, its end, and the hearing of
// a relay: nothing but a finished run outlives it. One that was rolled back does nothing.
func TestACancelEndsTheTaskInEveryOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	all := actors(t, db, 3)
	scenario{all, 2 * 2 * len(holderEnds), func(variant int) ([][]step, func() string) {
		db.Do(t, emptyAll)
		db.Do(t, dead(relayA, "1 hour"))
		h := &holder{actor: all[0], leased: variant%2 == 0, task: db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ('TX')
			RETURNING task_id`)}
		how, committed := holderEnds[variant/4], variant/2%2 == 0
		c, answer := all[1], outbox.CancelNotFound
		steps := [][]step{
			{h.claims(), h.ends(how, sql.NullString{}, sql.NullString{}), h.claims(),
				h.ends("finishes", sql.NullString{}, sql.NullString{})},
			{{name: "cancels", do: func() (n int, err error) {
				if err = c.begin(); err == nil {
					answer, err = outbox.Cancel(context.Background(), c.tx, int64(h.task))
				}
				return 0, err
			}}, {name: "which is committed: " + fmt.Sprint(committed), do: func() (int, error) {
				if committed {
					return 0, c.commit()
				}
				return 0, c.tx.Rollback()
			}}},
			hears(all[2], h.task),
		}
		return steps, func() string {
			c.tx = nil
			for range 2 { // the quiet after
				doAll(t, hears(all[2], h.task))
			}
			left, asked := db.Int(t, `SELECT count(*) FROM outbox.task`), db.Int(t, `SELECT count(*) FROM outbox.cancel`)
			canceled := db.Int(t, `SELECT COALESCE(sum(tasks), 0) FROM outbox.counter_log WHERE kind = 'canceled'`)
			wantLeft, wantCanceled := 1, 0
			switch {
			case h.done:
				wantLeft = 0
			case committed:
				wantLeft, wantCanceled = 0, 1
			}
			if answer == outbox.CancelNotFound && !h.done || answer == outbox.CancelRemoved && committed && h.done {
				return fmt.Sprintf("Cancel answered %v, and the task is done: %v", answer, h.done)
			}
			if left != wantLeft || canceled != wantCanceled || asked != 0 || db.Int(t, invariants.Miscounted) != 0 {
				return fmt.Sprintf("Cancel answered %v; %d tasks and %d requests are left and %d counted as canceled, want %d, 0 and %d", answer, left, asked, canceled, wantLeft, wantCanceled)
			}
			return ""
		}
	}}.everyOrder(t, db)
}

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
	doAll(t, promotes(o.undisturbed))
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
