package relay_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/relaytest"
	runs "github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// lifecycle is what the two relays of a schedule do, and a naive model of what must come of it.
type lifecycle struct {
	t       *testing.T
	db      *database
	a, b    *actor
	task    int
	expires bool // a's lease runs out by itself, whatever its heartbeat says

	place   string   // ready, scheduled, done, dead, or the token of the lease
	beaten  bool     // a's relay is alive
	scanned bool     // b's scan found a's relay dead, with leases
	trace   []string // of the steps so far
}

const (
	relayA, relayB = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"
	tokenA, tokenB = "aaaaaaaa-0000-4000-8000-00000000000a", "bbbbbbbb-0000-4000-8000-00000000000b"
)

func (l *lifecycle) statement(name string) string { return statements[name] }

// check compares the step's effect and the task's place with the model.
func (l *lifecycle) check(step string, changed int, should bool) {
	l.trace = append(l.trace, step)
	if (changed == 1) != should || changed > 1 {
		l.t.Errorf("%s: changed %d rows, want it to change the task: %v", strings.Join(l.trace, ", "), changed, should)
	}
	got := l.db.Text(l.t, `SELECT coalesce((SELECT CASE WHEN state = 'leased' THEN lease_token::text ELSE state END FROM outbox.task WHERE task_id = $1),
		(SELECT 'dead' FROM outbox.dead_task WHERE task_id = $1), 'done')`, l.task)
	if got != l.place {
		l.t.Errorf("%s: the task is %s, want %s", strings.Join(l.trace, ", "), got, l.place)
	}
}

func (l *lifecycle) lease(a *actor, who, relayID, token string, lease time.Duration) step {
	return step{do: func() (int, error) {
		tasks, err := a.query(`SELECT tasks FROM (`+runs.LeaseSQL+`) AS l`, "LEASED", 1, relayID, token,
			sql.NullInt64{Int64: lease.Microseconds(), Valid: lease > 0}, 1000, 0, 0, 0, 0, pq.Array([]int{}), 0, 0, 1, 64)
		if len(tasks) > 0 {
			a.place = strings.Split(tasks[0], "\t")[1]
		}
		return len(tasks), err
	}, done: func(n int) {
		should := l.place == "ready"
		if should {
			l.place = token
		}
		l.check(who+" leases", n, should)
	}}
}

// end is a step of one relay that ends the lease of token, if it still is the task's.
func (l *lifecycle) end(a *actor, who, token, name string) step {
	return step{do: func() (int, error) {
		switch name {
		case "completes":
			lost, err := a.query(runs.FinishSQL, pq.Array([]int{l.task}), pq.Array([]string{a.place}), pq.Array([]string{token}), pq.Array([]int{1}))
			return 1 - len(lost), err
		case "fails":
			return a.exec(l.statement("return lease"), l.task, token, "scheduled", 1, "error", nil, time.Hour.Microseconds(), nil)
		case "releases":
			return a.exec(l.statement("return lease"), l.task, token, "ready", 0, nil, nil, 0, nil)
		}
		return a.exec(l.statement("dead lease"), l.task, token, 1, 1, "attempts", "error")
	}, done: func(n int) {
		should := l.place == token
		if should {
			l.place = map[string]string{"completes": "done", "fails": "scheduled", "releases": "ready", "buries": "dead"}[name]
		}
		l.check(who+" "+name, n, should)
	}}
}

func (l *lifecycle) beat() step {
	return step{do: func() (int, error) {
		return l.a.exec(upkeep.BeatSQL, relayA, "host", 1, time.Hour.Microseconds(), pq.Array([]string{"LEASED"}), 1, 0)
	}, done: func(int) {
		l.beaten = true
		l.trace = append(l.trace, "A beats")
	}}
}

func (l *lifecycle) scan() step {
	return step{do: func() (int, error) {
		if err := l.b.begin(); err != nil {
			return 0, err
		}
		return l.b.exec(l.statement("dead relays"), relayB)
	}, done: func(n int) {
		l.scanned = n == 1
		l.trace = append(l.trace, "B scans")
		if want := !l.beaten && l.place == tokenA; l.scanned != want {
			l.t.Errorf("%s: found A dead with leases: %v, want %v", strings.Join(l.trace, ", "), l.scanned, want)
		}
	}}
}

func (l *lifecycle) steal() step {
	return step{do: func() (n int, err error) {
		if l.scanned {
			if n, err = l.b.exec(l.statement("take over"), pq.Array([]string{relayA})); err != nil {
				return 0, err
			}
		}
		expired, err := l.b.exec(l.statement("expire"))
		return n + expired, errors.Join(err, l.b.commit())
	}, done: func(n int) {
		should := l.place == tokenA && (l.scanned || l.expires)
		if should {
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
	a, b := newActor(t, db), newActor(t, db)
	schedules := orders(5, 5)
	if len(schedules) != 252 {
		t.Fatalf("%d interleavings, want 252", len(schedules))
	}
	ends := [][]string{{"completes", "fails", "releases"}, {"fails", "releases", "completes"}, {"releases", "buries", "completes"}}
	for i, schedule := range relaytest.Part(schedules, 12) {
		variants := []int{0, 1, 2, 3}
		if !relaytest.Long {
			variants = variants[i%4 : i%4+1]
		}
		for _, variant := range variants {
			l := &lifecycle{t: t, db: db, a: a, b: b, expires: variant == len(ends), place: "ready"}
			db.Do(t, `DELETE FROM outbox.relay; DELETE FROM outbox.task; DELETE FROM outbox.dead_task`)
			db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES
				($1, 'host', 1, now() - interval '1 second', '{}'), ($2, 'host', 2, now() + interval '1 hour', '{}')`, relayA, relayB)
			l.task = db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ('LEASED') RETURNING task_id`)
			leaseA := time.Duration(0)
			if l.expires {
				leaseA = time.Microsecond
			}
			end := ends[variant%len(ends)]
			stepsA := []step{l.lease(a, "A", relayA, tokenA, leaseA), l.beat(),
				l.end(a, "A", tokenA, end[0]), l.end(a, "A", tokenA, end[1]), l.end(a, "A", tokenA, end[2])}
			stepsB := []step{l.scan(), l.steal(), l.lease(b, "B", relayB, tokenB, time.Hour),
				l.end(b, "B", tokenB, end[i%3]), l.end(b, "B", tokenB, end[(i+1)%3])}
			play(t, db, []*actor{a, b}, [][]step{stepsA, stepsB}, schedule)
			if n := db.Int(t, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.dead_task)`); (n == 0) != (l.place == "done") || n > 1 {
				t.Errorf("%s: the task is in %d tables", strings.Join(l.trace, ", "), n)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}
