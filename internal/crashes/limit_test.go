package crashes_test

import (
	"context"
	"database/sql"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

const limitedTo = 3

// limited registers handlers of each kind that may run three times in all relays. Each call is in the table inside while it
// runs, committed on the side, and notes in the table crowd when it finds more than three there.
func limited(side *sql.DB) *handlers.Registry {
	work := func(taskType string, taskID int64) error {
		_, err := side.Exec(`INSERT INTO inside (task_type, task_id, pid) VALUES ($1, $2, $3)`, taskType, taskID, os.Getpid())
		if err != nil {
			return err
		}
		if _, err = side.Exec(`INSERT INTO crowd SELECT task_type, count(*) FROM inside WHERE task_type = $1 AND pid NOT IN (SELECT pid FROM dead) GROUP BY 1 HAVING count(*) > $2`, taskType, limitedTo); err != nil {
			return err
		}
		<-time.After(300 * time.Millisecond) // work
		_, err = side.Exec(`DELETE FROM inside WHERE task_type = $1 AND task_id = $2 AND pid = $3`, taskType, taskID, os.Getpid())
		return err
	}
	reg := handlers.New()
	total, many := handlers.MaxRunningTotal(limitedTo), handlers.MaxAttempts(1000)
	relaytest.Tx(reg, relaytest.TypeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		return work("TX", task.ID)
	}, total, many)
	handlers.Batch(reg, relaytest.TypeBatch, 5, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		return work("BATCH", tasks[0].ID)
	}, total, many)
	handlers.Leased(reg, relaytest.TypeLeased, func(_ context.Context, task *outbox.Task[relaytest.Payload]) error { return work("LEASED", task.ID) }, total, many)
	return reg
}

func newLimitedDatabase(t testing.TB) *relaytest.Database {
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE inside (task_type text, task_id bigint, pid int); CREATE TABLE crowd (task_type text, n int); CREATE TABLE dead (pid int)`)
	return db
}

// slotsAreTaken fails unless three calls of each type run in nearly all samples.
func slotsAreTaken(t *testing.T, db *relaytest.Database, kinds []string, running string) {
	sample := func() bool {
		samples, full := 0, map[string]int{}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); samples++ {
			for _, kind := range kinds {
				if db.Int(t, running, kind) == limitedTo {
					full[kind]++
				}
			}
			<-time.After(10 * time.Millisecond)
		}
		for _, kind := range kinds {
			t.Logf("%s: %.1f %% of %d samples have all three", kind, 100*float64(full[kind])/float64(samples), samples)
		}
		return !slices.ContainsFunc(kinds, func(kind string) bool { return full[kind]*10 < samples*9 })
	}
	for round := 1; !sample(); round++ { // other load on the machine may spoil one
		if round == 6 {
			t.Errorf("in none of %d rounds all three were running in 90 %% of the samples", round)
			break
		}
	}
}

// Four processes have six workers each. Never more than three calls of a type run at once. Three run
// again after a process was killed while it held slots, with OUTBOX_TEST_LONG=1 one for each type.
func TestALimitOfATypeHoldsInAllProcessesAndSurvivesTheirDeath(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	kinds := []string{"TX", "BATCH", "LEASED"}
	db := newLimitedDatabase(t)
	processes := map[int]*process{}
	for range 4 {
		p := start(t, db, "limited", 6)
		processes[p.Pid] = p
	}
	for _, kind := range kinds {
		db.Enqueue(t, kind, 2000)
	}
	relaytest.Eventually(t, 30*time.Second, "all processes are there and all slots are taken", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 4 && db.Int(t, `SELECT count(*) FROM inside`) == 3*limitedTo
	})
	const running = `SELECT count(*) FROM inside WHERE task_type = $1 AND pid NOT IN (SELECT pid FROM dead)`
	if os.Getenv("OUTBOX_TEST_TIMING") != "" {
		slotsAreTaken(t, db, kinds, running)
	}
	for _, kind := range relaytest.Part(kinds, 1) {
		var p *process
		relaytest.Eventually(t, 30*time.Second, "a process holds a slot of "+kind, func() bool {
			p = processes[db.Int(t, `SELECT COALESCE(min(pid), 0) FROM inside WHERE task_type = $1 AND pid NOT IN (SELECT pid FROM dead)`, kind)]
			return p != nil
		})
		db.Do(t, `INSERT INTO dead VALUES ($1)`, p.Pid)
		p.Kill9()
		if err := declareDead(db, p); err != nil {
			t.Fatal(err)
		}
		delete(processes, p.Pid)
		began := time.Now()
		for _, of := range kinds {
			relaytest.Eventually(t, 30*time.Second, "all slots of "+of+" are taken again", func() bool {
				return db.Int(t, running, of) == limitedTo
			})
			t.Logf("%s: three again %v after the death of one process", of, time.Since(began).Round(time.Millisecond))
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM crowd`); n > 0 {
		t.Errorf("%d times more than three ran at once: %s", n, db.Text(t, `SELECT json_agg(c) FROM crowd c`))
	}
	if n := db.Int(t, `SELECT count(DISTINCT task_type) FROM outbox.task WHERE state = 'ready'`); n != 3 {
		t.Errorf("%d types have work left: the test shows nothing", n)
	}
	for _, p := range processes {
		p.Kill9()
	}
	db.Do(t, `TRUNCATE outbox.task`)
}
