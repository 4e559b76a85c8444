package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/store"
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

// end is a step of one relay that ends the lease of token, if it still is the task's.
func (l *lifecycle) end(a *actor, who, token, name string) step {
	return step{name: who + " " + name, do: func() (int, error) {
		switch name {
		case "completes":
			lost, err := a.query(store.FinishSQL, pq.Array([]int{l.task}), pq.Array([]string{a.place}),
				pq.Array([]string{token}), pq.Array([]int{1}))
			return 1 - len(lost), err
		case "fails":
			return a.exec(statements["return lease"], l.task, token, "scheduled", 1, "error", nil, time.Hour.Microseconds(), nil,
				nil)
		case "releases":
			return a.exec(statements["return lease"], l.task, token, "ready", 0, nil, nil, 0, nil, nil)
		}
		return a.exec(statements["dead lease"], l.task, token, `{"attempt": 1, "reason": "attempts"}`, 1, nil)
	}, done: func(n int) {
		should := l.place == token
		if should {
			l.place = map[string]string{"completes": "done", "fails": "scheduled", "releases": "ready", "buries": "dead"}[name]
		}
		l.check(who+" "+name, n, should)
	}}
}

func (l *lifecycle) beat() step {
	return step{name: "A beats", do: func() (int, error) {
		return l.a.exec(sent["heartbeat"], relayA, "host", 1, (5 * time.Minute).Microseconds(), pq.Array([]string{"LEASED"}),
			1, 0, "{}", "")
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
	ends := [][]string{{"completes", "fails", "releases"}, {"fails", "releases", "completes"},
		{"releases", "buries", "completes"}}
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
