package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// A hosting service's linter asks for row level security. Without policies it hides all rows from all
// but the owner, so there seems to be no task, or no outbox.
func TestARelayThatSeesNoRowsSaysSo(t *testing.T) {
	t.Parallel()
	db, app := role(t, "")
	role := "app_of_" + db.Text(t, `SELECT current_database()`)
	refused := func(table string) {
		t.Helper()
		r, err := relay.New(app.DB, all(), relay.Config{Logger: discard()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = r.Run(ctx)
		if !errors.Is(err, schema.ErrRowSecurity) {
			t.Errorf("%s: Run returned %v", table, err)
			return
		}
		for _, part := range []string{"hides rows of outbox." + table, `"` + role + `"`,
			"ALTER TABLE outbox." + table + " DISABLE ROW LEVEL SECURITY", "CREATE POLICY outbox ON outbox." + table + " TO"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error lacks %q: %v", table, part, err)
			}
		}
		if errors.Is(err, schema.ErrNotMigrated) {
			t.Errorf("%s: %v", table, err)
		}
	}
	for _, table := range []string{"task", "migration"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` ENABLE ROW LEVEL SECURITY`)
		refused(table)
		if table == "migration" {
			for name, err := range map[string]error{"Migrate": schema.Migrate(t.Context(), app.DB),
				"Check": schema.Check(t.Context(), app.DB)} {
				if !errors.Is(err, schema.ErrRowSecurity) {
					t.Errorf("%s: got %v", name, err)
				}
			}
		}
		// What the error says is what helps; one policy, for reading alone, is too little.
		db.Do(t, `CREATE POLICY reads ON outbox.`+table+` FOR SELECT TO PUBLIC USING (true)`)
		if table == "task" {
			refused(table)
			err := outbox.InTx(t.Context(), app.DB, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, typeTx.Name(), payload{})
				return err
			})
			if err == nil || !strings.Contains(err.Error(), `row-level security policy for table "task"`) {
				t.Errorf("Enqueue: got %v", err)
			}
		}
		db.Do(t, `CREATE POLICY outbox ON outbox.`+table+` TO `+role+` USING (true) WITH CHECK (true)`)
	}
	r := run(t, app, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Enqueue(t, typeTx.Name(), 1)
	db.Emptied(t, 20*time.Second)

	// It is switched on beside a relay at work, for all tables.
	db.Do(t, `DROP POLICY outbox ON outbox.task; ALTER TABLE outbox.relay ENABLE ROW LEVEL SECURITY`)
	eventually(t, 30*time.Second, "the relay is not healthy", func() bool {
		return errors.Is(r.Health(), schema.ErrRowSecurity)
	})
	if err := r.Health(); !strings.Contains(err.Error(), "hides rows of outbox.relay") ||
		!strings.Contains(err.Error(), "likewise for task") {
		t.Errorf("Health: %v", err)
	}
	eventually(t, 30*time.Second, "the log says so", func() bool {
		return r.Log.Count("the relay does not see all tasks") == 1
	})
	db.Do(t, `ALTER TABLE outbox.relay DISABLE ROW LEVEL SECURITY; ALTER TABLE outbox.task DISABLE ROW LEVEL SECURITY`)
	eventually(t, 30*time.Second, "the relay is healthy again", func() bool { return r.Health() == nil })
}
