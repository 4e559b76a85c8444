package crashes_test

import (
	"context"
	"database/sql"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

const (
	limit     = 3   // calls of a LIMITED type, in all relays
	perSecond = 100 // tasks of a RATED type
)

// limited is in the table inside while it runs, and notes in the table crowd if it finds more than
// the limit there.
func (w worker) limited(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
	task := tasks[0]
	_, err := w.side.Exec(`INSERT INTO inside VALUES ($1, $2, $3)`, task.Type, task.ID, os.Getpid())
	if err != nil {
		return err
	}
	_, err = w.side.Exec(`INSERT INTO crowd SELECT task_type, count(*) FROM inside WHERE task_type = $1
		AND pid NOT IN (SELECT pid FROM dead) GROUP BY 1 HAVING count(*) > $2`, task.Type, limit)
	if err != nil {
		return err
	}
	pause(context.Background(), 300*time.Millisecond)
	_, err = w.side.Exec(`DELETE FROM inside WHERE task_id = $1 AND pid = $2`, task.ID, os.Getpid())
	return err
}

// Four processes have six workers each. Never more than three calls of a type run at once. Three run
// again after a process was killed while it held slots.
func TestALimitOfATypeHoldsInAllProcessesAndSurvivesTheirDeath(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t, pgtest.Server(t))
	types := []string{"LIMITED_TX", "LIMITED_BATCH", "LIMITED_LEASED"}
	f := &fleet{db: db, workers: 6, once: true}
	f.start(t, 4)
	for _, name := range types {
		enqueue(t, db, name, 2000, `{}`)
	}
	const living = `SELECT count(*) FROM inside WHERE task_type = $1 AND pid NOT IN (SELECT pid FROM dead)`
	full := func() {
		t.Helper()
		for _, name := range types {
			relaytest.Eventually(t, 30*time.Second, "all slots of "+name+" are taken", func() bool {
				return db.Int(t, living, name) == limit
			})
		}
	}
	full()
	for _, name := range relaytest.Part(types, 1) {
		var victim *child.Process
		relaytest.Eventually(t, 30*time.Second, "a process holds a slot of "+name, func() bool {
			pid := db.Int(t, `SELECT coalesce(min(pid), 0) FROM inside WHERE task_type = $1
				AND pid NOT IN (SELECT pid FROM dead)`, name)
			alive := f.running()
			i := slices.IndexFunc(alive, func(p *child.Process) bool { return p.Pid == pid })
			if i >= 0 {
				victim = alive[i]
			}
			return i >= 0
		})
		db.Do(t, `INSERT INTO dead VALUES ($1)`, victim.Pid)
		victim.Kill9()
		full()
	}
	if crowd := db.Text(t, `SELECT json_agg(c) FROM crowd c`); crowd != "" {
		t.Errorf("more than three ran at once: %s", crowd)
	}
	if n := db.Int(t, `SELECT count(DISTINCT task_type) FROM outbox.task WHERE state = 'ready'`); n != len(types) {
		t.Errorf("%d types have work left: the test shows nothing", n)
	}
	for _, p := range f.running() {
		p.Kill9()
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// rated notes the starts of its tasks.
func (w worker) rated(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
	for _, task := range tasks {
		if _, err := w.side.ExecContext(ctx, noteStart, task.ID, task.Type, task.Attempt, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

func TestTheRateOfATypeHoldsInAllProcessesAndIsReached(t *testing.T) {
	needs.Timing(t)
	db := newDatabase(t, pgtest.Server(t))
	types := []string{"RATED_TX", "RATED_BATCH", "RATED_LEASED"}
	for _, name := range types {
		enqueue(t, db, name, 6000, `{}`)
	}
	f := &fleet{db: db, workers: 10}
	f.start(t, 3)
	relaytest.Eventually(t, 30*time.Second, "all have begun", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 3 &&
			db.Int(t, `SELECT count(DISTINCT task_type) FROM start`) == 3
	})
	reached := map[string]int{}
	slow := func(name string) bool { return reached[name] < perSecond*9/10 }
	for round := 0; round < 6 && slices.ContainsFunc(types, slow); round++ { // other load on the machine may spoil one
		began := db.Text(t, `SELECT clock_timestamp()`)
		pause(t.Context(), 3*time.Second)
		for _, name := range types {
			n := db.Int(t, `SELECT count(*) FROM start WHERE task_type = $1 AND at BETWEEN $2::timestamptz
				AND $2::timestamptz + interval '3 s'`, name, began)
			reached[name] = max(reached[name], n/3)
		}
	}
	for _, name := range types {
		if slow(name) {
			t.Errorf("%s: %d tasks started in a second with work waiting, want %d at least", name, reached[name], perSecond*9/10)
		}
		// A handler begins a little after its task's token was taken.
		most := db.Int(t, `SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY at RANGE BETWEEN '1 s' PRECEDING
			AND CURRENT ROW) AS n
			FROM start WHERE task_type = $1) AS w`, name)
		if most > perSecond*12/10+2+10 {
			t.Errorf("%s: %d tasks started in one second, want %d at most, and ten that were late", name, most,
				perSecond*12/10+2)
		}
	}
	db.Do(t, `DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task FOR UPDATE SKIP LOCKED)`)
}
