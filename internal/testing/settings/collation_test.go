package settings_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// I13: a new version of libc or ICU may have another order. Here the database gets another locale, in
// which k10 is behind k9, while its indexes are as they are.
func TestAnotherOrderOfTheDatabasesCollationChangesNothing(t *testing.T) {
	db := relaytest.Adopt(t, pgtest.ICU(t, "en"))
	const n = 200
	var tasks []outbox.TaskSpec
	reg := handlers.New()
	for i := range n {
		taskType := fmt.Sprintf("T%d", i)
		relaytest.Tx(reg, outbox.NewTaskType[int](taskType), func(context.Context, *sql.Tx, *outbox.Task[int]) error {
			return nil
		})
		tasks = append(tasks,
			outbox.TaskSpec{Type: taskType, Payload: i},
			outbox.TaskSpec{Type: "T0", Payload: i, Options: []outbox.Option{outbox.Unique(fmt.Sprintf("k%d", i))}},
			outbox.TaskSpec{Type: "T1", Payload: i, Options: []outbox.Option{outbox.OrderedBy(fmt.Sprintf("o%d", i))}})
	}
	enqueue := func(db *relaytest.Database) (created, events int) {
		t.Helper()
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			all, err := outbox.EnqueueMany(t.Context(), tx, tasks)
			if err != nil {
				return err
			}
			for i, e := range all {
				if e.Outcome == outbox.OutcomeCreated {
					created++
				}
				first, err := inbox.Once(t.Context(), tx, "/source", fmt.Sprintf("e%d", i))
				if err != nil {
					return err
				}
				if first {
					events++
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return created, events
	}
	if created, events := enqueue(db); created != 3*n || events != 3*n {
		t.Fatalf("%d tasks were created, and %d events are new, want %d", created, events, 3*n)
	}
	locale := db.Text(t, `SELECT attname FROM pg_attribute WHERE attrelid = 'pg_database'::regclass
		AND attname IN ('daticulocale', 'datlocale')`)
	db.Do(t, `UPDATE pg_database SET `+locale+` = 'en-u-kn-true' WHERE datname = current_database()`)
	after := relaytest.Open(t, db.URL)
	if after.Text(t, `SELECT 'k10' > 'k9'`) != "true" {
		t.Fatal("the order is the same as before")
	}
	if created, events := enqueue(after); created != 2*n || events != 0 {
		t.Errorf("%d tasks were created, of which %d without a key, and %d events are new, want 0", created, 2*n, events)
	}
	relaytest.Once(t, after.DB, reg, relay.Config{})
	if left := after.Int(t, `SELECT count(*) FROM outbox.task`); left != 0 {
		t.Errorf("%d tasks never ran", left)
	}
}
