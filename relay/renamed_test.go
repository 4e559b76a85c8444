package relay_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestTasksOfARenamedSchemaRun(t *testing.T) {
	t.Parallel()
	db := open(t, relaytest.Migrated(t))
	start := func(name string) error {
		t.Helper()
		r, err := relay.New(db.DB, all(), relay.Config{Schema: name, Logger: discard()})
		must(err)
		return r.RunOnce(t.Context())
	}
	for _, name := range [][2]string{{"outbox", "tenant"}, {"tenant", "outbox"}} { // there and back
		db.Do(t, `DROP TABLE IF EXISTS effect; CREATE TABLE effect (task_id bigint, attempt int)`)
		db.Do(t, `ALTER SCHEMA `+name[0]+` RENAME TO `+name[1])
		for of, text := range map[string]string{name[0]: "is at version 0", name[1]: "was renamed: its functions work on"} {
			if err := start(of); !errors.Is(err, schema.ErrNotMigrated) || !strings.Contains(err.Error(), text) {
				t.Errorf("a relay of the schema %s: got %v, want ErrNotMigrated: %s", of, err, text)
			}
		}
		must(schema.Migrate(t.Context(), db.DB, schema.Schema(name[1])))
		var tasks []outbox.TaskSpec
		for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
			for _, o := range [][]outbox.Option{nil, {outbox.Unique("key")}, {outbox.OrderedBy("key")}, {outbox.MaxAttempts(1)}} {
				tasks = append(tasks, outbox.TaskSpec{Type: taskType, Payload: struct{}{}, Options: append(o, outbox.Schema(name[1]))})
			}
		}
		tx, err := db.BeginTx(t.Context(), nil)
		must(err)
		for _, task := range tasks {
			_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{task})
			must(err)
		}
		must(tx.Commit())
		// Each fails once, or dies, as there is no table for its effect.
		db.Do(t, `ALTER TABLE effect RENAME TO hidden`)
		relaytest.Once(t, db.DB, all(), relay.Config{Schema: name[1]})
		db.Do(t, `ALTER TABLE hidden RENAME TO effect; UPDATE `+name[1]+`.task SET run_at = now() WHERE state = 'scheduled'`)
		db.Want(t, "3", `SELECT count(*) FROM `+name[1]+`.dead_task`)
		_, err = relaytest.Admin(t, db.DB, name[1]).Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{})
		must(err)
		relaytest.Once(t, db.DB, all(), relay.Config{Schema: name[1]})
		db.Want(t, "12 0", `SELECT (SELECT count(DISTINCT task_id) FROM effect) || ' ' || count(*) FROM `+name[1]+`.task`)
	}
}
