package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := admin.New(nil, admin.Config{Schema: "A b", Actor: strings.Repeat("x", 257)})
	for _, want := range []string{"*sql.DB is nil", "Config.Schema", "Config.Actor", "Config.Tool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
	db := sql.OpenDB(nil)
	defer db.Close()
	for _, good := range []admin.Config{{}, {Schema: "app_outbox"}, {Actor: "ada", Tool: "backoffice"}} {
		if _, err := admin.New(db, good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// changes are all that change something.
var changes = map[string]func(context.Context, *admin.Client) error{
	"Redrive": func(ctx context.Context, c *admin.Client) error {
		return second(c.Redrive(ctx, admin.DeadFilter{All: true}, admin.Bulk{}))
	},
	"Purge": func(ctx context.Context, c *admin.Client) error {
		return second(c.Purge(ctx, admin.DeadFilter{All: true}, admin.Bulk{}))
	},
	"Cancel":         func(ctx context.Context, c *admin.Client) error { return second(c.Cancel(ctx, []int64{100})) },
	"RunNow":         func(ctx context.Context, c *admin.Client) error { return second(c.RunNow(ctx, []int64{100})) },
	"PauseType":      func(ctx context.Context, c *admin.Client) error { return c.PauseType(ctx, "A") },
	"ResumeType":     func(ctx context.Context, c *admin.Client) error { return c.ResumeType(ctx, "A") },
	"PauseSchedule":  func(ctx context.Context, c *admin.Client) error { return c.PauseSchedule(ctx, "s") },
	"ResumeSchedule": func(ctx context.Context, c *admin.Client) error { return c.ResumeSchedule(ctx, "s") },
	"RemoveSchedule": func(ctx context.Context, c *admin.Client) error { return c.RemoveSchedule(ctx, "s") },
	"WriteAudit": func(ctx context.Context, c *admin.Client) error {
		_, err := c.WriteAudit(ctx, admin.AuditEntry{Actor: "a", Tool: "t", Action: "a"})
		return err
	},
}

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(nil)
	defer db.Close()
	c := client(t, db)
	for name, do := range changes {
		for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), sqlx.NewDb(db, "postgres")} {
			if err := do(t.Context(), c.In(q)); !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s in %T: got %v, want ErrNoTransaction", name, q, err)
			}
		}
	}
	if err := changes["WriteAudit"](t.Context(), c); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("an entry without a transaction: got %v, want ErrNoTransaction", err)
	}
	if _, err := c.In(nil).Types(t.Context()); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("a read in nil: got %v, want ErrNoTransaction", err)
	}
	in := c.In(&sql.Tx{})
	_, err1 := in.HandBack(t.Context(), deadRelay)
	_, err2 := in.Reindex(t.Context())
	_, err3 := in.Repair(t.Context(), admin.RepairOptions{})
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("call %d that needs the pool: got %v, want ErrNoTransaction", i+1, err)
		}
	}
}

// reads are all that only read.
var reads = map[string]func(context.Context, *admin.Client) error{
	"Task":    func(ctx context.Context, c *admin.Client) error { _, err := c.Task(ctx, 101); return err },
	"Payload": func(ctx context.Context, c *admin.Client) error { _, err := c.Payload(ctx, 101); return err },
	"Relays":  func(ctx context.Context, c *admin.Client) error { _, err := c.Relays(ctx); return err },
	"Types":   func(ctx context.Context, c *admin.Client) error { _, err := c.Types(ctx); return err },
	"Samples": func(ctx context.Context, c *admin.Client) error {
		_, err := c.Samples(ctx, admin.SampleQuery{Type: "A"})
		return err
	},
	"Schedules": func(ctx context.Context, c *admin.Client) error { _, err := c.Schedules(ctx); return err },
	"Audit": func(ctx context.Context, c *admin.Client) error {
		return read(entriesOf(c.Audit(ctx, admin.AuditQuery{})))
	},
	"TaskAudit": func(ctx context.Context, c *admin.Client) error {
		return read(entriesOf(c.Audit(ctx, admin.AuditQuery{TaskID: 101})))
	},
	"Origin": func(ctx context.Context, c *admin.Client) error { _, err := c.Origin(ctx); return err },
	"DeadGroups": func(ctx context.Context, c *admin.Client) error {
		_, err := c.DeadGroups(ctx, admin.DeadQuery{})
		return err
	},
	"Defects": func(ctx context.Context, c *admin.Client) error {
		_, err := c.Defects(ctx, admin.RepairOptions{})
		return err
	},
	"DeadLetters": func(ctx context.Context, c *admin.Client) error {
		return read(tasksOf(c.DeadLetters(ctx, admin.DeadQuery{})))
	},
	"Tasks": func(ctx context.Context, c *admin.Client) error {
		return read(tasksOf(c.Tasks(ctx, admin.TaskQuery{Type: "A", State: admin.StateReady})))
	},
}

func read[T any](_ []T, _ string, err error) error { return err }

// Every call works on each kind of connection, in an outbox of another name, and commits with its
// transaction.
func TestEveryCallOnEachConnectionAndInAnotherSchema(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		db := relaytest.Open(t, relaytest.Migrated(t, schema.Schema("select")), driver)
		c := client(t, db.DB, admin.Config{Schema: "select", Actor: "ada", Tool: "test"})
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		commit := func() error { _, err := conn.ExecContext(t.Context(), "COMMIT"); return err }
		tx := begin(t, db)
		xtx, err := sqlx.NewDb(db.DB, driver).Beginx()
		if err != nil {
			t.Fatal(err)
		}
		state := func() string {
			return db.Text(t, `SELECT concat_ws(' ', (SELECT count(*) FROM "select".dead_task),
				(SELECT count(*) FROM "select".task WHERE task_id = 100), (SELECT count(*) > 0 FROM "select".audit))`)
		}
		for _, on := range []struct {
			name string
			c    *admin.Client
			end  func() error
		}{{"DB", c, nil}, {"Conn", c.In(conn), commit}, {"Tx", c.In(tx), tx.Commit}, {"sqlx.Tx", c.In(xtx), xtx.Commit}} {
			db.Do(t, `TRUNCATE "select".task, "select".dead_task, "select".audit, "select".schedule, "select".task_type;
				INSERT INTO "select".dead_task
					(task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload)
					VALUES (1000, now(), now(), 0, 1, 1, 'attempts', 'X', '1');
				INSERT INTO "select".task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
					SELECT n, 'A', now() + interval '1 hour' FROM generate_series(100, 101) n;
				INSERT INTO "select".schedule (name, task_type, payload, spec, timing, definition)
					VALUES ('s', 'A', '{}', '', '', '')`)
			for _, calls := range []map[string]func(context.Context, *admin.Client) error{reads, changes} {
				for name, do := range calls {
					err := do(t.Context(), on.c)
					gone := errors.Is(err, admin.ErrNotFound) && strings.HasSuffix(name, "Schedule") // removed before
					if onPool := name == "WriteAudit" && on.name == "DB"; err != nil && !gone && !onPool {
						t.Errorf("%s: %s: %v", on.name, name, err)
					}
				}
			}
			if on.end != nil {
				if got := state(); got != "1 1 f" {
					t.Errorf("%s: before the commit: %s", on.name, got)
				}
				if err := on.end(); err != nil {
					t.Error(err)
				}
			}
			if got := state(); got != "0 0 t" {
				t.Errorf("%s: %s, want no dead letter, no task 100 and entries", on.name, got)
			}
		}
	}
}

// An action whose entry cannot be written is not done.
func TestAnActionAndItsEntryAreOne(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "X", "attempts", "boom", 1000, 2, 60)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
		VALUES (100, 'A', now() + interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition)
		VALUES ('s', 'A', '{}', '', '', '')`)
	lease(t, db, liveRelay, 1)
	db.Do(t, `ALTER TABLE outbox.audit ADD CONSTRAINT closed CHECK (entry_id < 0)`)
	before := db.Dump(t)
	all := map[string]func(context.Context, *admin.Client) error{
		"HandBack": func(ctx context.Context, c *admin.Client) error { _, err := c.HandBack(ctx, liveRelay); return err },
		"Reindex":  func(ctx context.Context, c *admin.Client) error { _, err := c.Reindex(ctx); return err },
	}
	maps.Copy(all, changes)
	delete(all, "WriteAudit")
	for name, do := range all {
		if err := do(t.Context(), c); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: got %v, want the error of its entry", name, err)
		}
	}
	if after := db.Dump(t); after != before {
		t.Errorf("got\n%s\nwant, as before,\n%s", after, before)
	}
	db.Do(t, `ALTER TABLE outbox.audit DROP CONSTRAINT closed; DELETE FROM outbox.task`)
}
