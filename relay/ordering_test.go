package relay_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// newOrdered is a database with a log of the runs of ordered tasks.
func newOrdered(t testing.TB) *database {
	db := newDatabase(t)
	db.CreateRuns(t)
	return db
}

func TestTasksOfAnOrderingKeyRunOneAfterTheOther(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newOrdered(t)
	const keys, each = 30, 10
	var tasks []outbox.TaskSpec
	for range each {
		for key := range keys {
			tasks = append(tasks, outbox.TaskSpec{Type: relaytest.OrderedTypes[key%3],
				Payload: relaytest.OrderedPayload{Fail: rand.IntN(20) / 17},
				Options: []outbox.Option{outbox.OrderedBy(fmt.Sprint(key))}})
		}
	}
	db.inTx(t, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		return err
	})
	for range 3 {
		run(t, open(t, db.URL), relaytest.Ordered(), relay.Config{Workers: 6, PollInterval: 100 * time.Millisecond})
	}
	db.Emptied(t, 60*time.Second)
	db.InOrder(t, keys*each)
}

// A process's own wake-ups suffice: no poll is waited for between the tasks of a key.
func TestAKeyGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	for _, taskType := range relaytest.Part(relaytest.OrderedTypes, 1) {
		t.Run(taskType, func(t *testing.T) {
			db := newOrdered(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) SELECT $1, 'k' FROM generate_series(1, 50)`, taskType)
			once(t, db, relaytest.Ordered(), relay.Config{PollInterval: time.Minute})
			db.InOrder(t, 50)
		})
	}
}

// One that commits late has a lower id, and runs when it is the head: it is not skipped and runs
// beside none.
func TestAnOrderedTaskThatCommitsLateIsNotSkipped(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('ORDERED_TX', 'k')`)
	// waits for nobody
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) SELECT 'ORDERED_TX', 'k' FROM generate_series(1, 3)`)
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.want(t, 3, "tasks ran while another transaction is open", `SELECT count(*) FROM run`)
	commit()
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.want(t, 4, "tasks ran", `SELECT count(*) FROM run`)
}
