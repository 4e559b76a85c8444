package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// The doctor's finding about foreign keys is true: a failed attempt of a Tx task deletes the row and
// puts it back.
func TestAForeignKeyToATaskIsHurtByTheFirstFailedAttempt(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{"CASCADE": "", "SET NULL": "mail null", "NO ACTION": "mail 1"} {
		t.Run(action, func(t *testing.T) {
			db := adopt(t, pgtest.Database(t))
			db.Do(t, `CREATE TABLE mail (name text DEFAULT 'mail', task_id bigint REFERENCES outbox.task ON DELETE `+action+`)`)
			db.Enqueue(t, typeTx.Name(), 1)
			db.Do(t, `INSERT INTO mail (task_id) SELECT task_id FROM outbox.task`)
			reg := handlers.New()
			handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
				return errors.New("not now")
			})
			r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			if action == "NO ACTION" {
				eventually(t, 30*time.Second, "the type fails", func() bool { return errors.Is(r.Health(), relay.ErrTypeFails) })
			} else {
				eventually(t, 30*time.Second, "the attempt has failed", func() bool {
					return db.Int(t, `SELECT attempt FROM outbox.task`) > 0
				})
			}
			if got := db.Text(t, `SELECT string_agg(name || ' ' || COALESCE(task_id::text, 'null'), ', ') FROM mail`); got != want {
				t.Errorf("the app has %q, want %q", got, want)
			}
		})
	}
}
