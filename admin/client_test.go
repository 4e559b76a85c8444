package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := admin.New(nil, admin.Options{Schema: "A b", Actor: strings.Repeat("x", 257)})
	for _, want := range []string{"*sql.DB is nil", "Options.Schema", "Options.Actor", "Options.Tool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
	db := sql.OpenDB(nil)
	defer db.Close()
	for _, good := range []admin.Options{{}, {Schema: "app_outbox"}, {Actor: "ada", Tool: "backoffice"}} {
		if _, err := admin.New(db, good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// changes are all that change something.
var changes = map[string]func(context.Context, *admin.Client) error{
	"Redrive": func(ctx context.Context, c *admin.Client) error {
		return errOf(c.Redrive(ctx, admin.Filter{All: true}, admin.Page{}))
	},
	"Purge": func(ctx context.Context, c *admin.Client) error {
		return errOf(c.Purge(ctx, admin.Filter{All: true}, admin.Page{}))
	},
	"Cancel":         func(ctx context.Context, c *admin.Client) error { _, _, err := c.Cancel(ctx, 100); return err },
	"RunNow":         func(ctx context.Context, c *admin.Client) error { _, err := c.RunNow(ctx, 100); return err },
	"PauseType":      func(ctx context.Context, c *admin.Client) error { return c.PauseType(ctx, "A") },
	"ResumeType":     func(ctx context.Context, c *admin.Client) error { return c.ResumeType(ctx, "A") },
	"PauseSchedule":  func(ctx context.Context, c *admin.Client) error { return c.PauseSchedule(ctx, "s") },
	"ResumeSchedule": func(ctx context.Context, c *admin.Client) error { return c.ResumeSchedule(ctx, "s") },
	"RemoveSchedule": func(ctx context.Context, c *admin.Client) error { return c.RemoveSchedule(ctx, "s") },
	"WriteAudit": func(ctx context.Context, c *admin.Client) error {
		_, err := c.WriteAudit(ctx, admin.Entry{Actor: "a", Tool: "t", Action: "a"})
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
	_, _, err3 := in.EveryPage(t.Context(), in.Redrive, admin.Filter{All: true}, 0)
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("call %d that needs the pool: got %v, want ErrNoTransaction", i+1, err)
		}
	}
}

// Every call works on each kind of connection, in an outbox of another name, and commits with its
// transaction.
func TestEveryCallOnEachConnectionAndInAnotherSchema(t *testing.T) {
	t.Parallel()
	for _, driver := range drivers() {
		db := relaytest.Open(t, relaytest.Migrated(t, schema.Schema("select")), driver)
		c := client(t, db.DB, admin.Options{Schema: "select", Actor: "ada", Tool: "test"})
		number := func(of string) int { t.Helper(); return db.Int(t, `SELECT count(*) FROM "select".`+of) }
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		xtx, err := sqlx.NewDb(db.DB, driver).Beginx()
		if err != nil {
			t.Fatal(err)
		}
		for _, on := range []struct {
			name string
			c    *admin.Client
			end  func() error
		}{{"DB", c, nil}, {"Conn", c.In(conn), nil}, {"Tx", c.In(tx), tx.Commit}, {"sqlx.Tx", c.In(xtx), xtx.Commit}} {
			db.Do(t, `TRUNCATE "select".task, "select".dead_task, "select".audit, "select".schedule, "select".task_type`)
			db.Do(t, `INSERT INTO "select".dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
				SELECT 1000 + i, now(), now(), 0, 1, 1, 'attempts', 'X', '{"N": 1}', 'boom' FROM generate_series(1, 3) i`)
			db.Do(t, `INSERT INTO "select".task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE VALUES (1, 'A', now() + interval '1 hour'), (2, 'A', now() + interval '1 hour')`)
			db.Do(t, `INSERT INTO "select".schedule (name, task_type, payload, spec, timing, definition) VALUES ('s', 'A', '{}', 'x', 'x', 'x'), ('t', 'A', '{}', 'x', 'x', 'x')`)
			ctx, c := t.Context(), on.c
			check := func(call string, ok bool, err error) {
				t.Helper()
				if !ok || err != nil {
					t.Errorf("%s: %s: %t, %v", on.name, call, ok, err)
				}
			}
			task, err := c.Task(ctx, 1)
			check("Task", task.State == admin.Scheduled, err)
			secrets, err := c.Secrets(ctx, 1001)
			check("Secrets", string(secrets.Payload) == `{"N": 1}`, err)
			tasks, next, err := c.Tasks(ctx, "A", admin.Scheduled, admin.Page{Limit: 1})
			check("Tasks", len(tasks) == 1 && next != "", err)
			tasks, next, err = c.DeadLetters(ctx, admin.Filter{Type: "X"}, admin.Page{Limit: 2})
			check("DeadLetters", len(tasks) == 2 && next != "", err)
			n, _, err := c.CountDeadLetters(ctx, admin.Filter{}, admin.Page{})
			check("CountDeadLetters", n == 3, err)
			_, err = c.Relays(ctx)
			check("Relays", true, err)
			_, err = c.Samples(ctx, "A", time.Hour)
			check("Samples", true, err)

			moved, _, err := c.Redrive(ctx, admin.Filter{IDs: []int64{1002, 9}}, admin.Page{})
			check("Redrive", slices.Equal(moved.IDs, []int64{1002}), err)
			purged, _, err := c.Purge(ctx, admin.Filter{Error: "boom"}, admin.Page{Limit: 1})
			check("Purge", len(purged.IDs) == 1, err)
			due, err := c.RunNow(ctx, 1, 99)
			check("RunNow", slices.Equal(due, []int64{1}), err)
			canceled, requested, err := c.Cancel(ctx, 2, 99)
			check("Cancel", slices.Equal(canceled, []int64{2}) && requested == nil, err)
			check("PauseType", true, c.PauseType(ctx, "PAUSED"))
			check("PauseSchedule", true, c.PauseSchedule(ctx, "s"))
			check("RemoveSchedule", true, c.RemoveSchedule(ctx, "t"))
			schedules, err := c.Schedules(ctx)
			check("Schedules", len(schedules) == 1 && schedules[0].Paused, err)
			types, err := c.Types(ctx)
			check("Types", slices.ContainsFunc(types, func(of admin.Type) bool { return of.Type == "PAUSED" && of.Paused }), err)
			entries, _, err := c.Audit(ctx, admin.Page{})
			check("Audit", len(entries) == 7 && entries[0].Action == "remove_schedule" && entries[6].Target == "task 1002", err)
			entries, err = c.TaskAudit(ctx, 1002)
			check("TaskAudit", len(entries) == 1 && entries[0].Action == "redrive", err)
			origin, err := c.Origin(ctx)
			check("Origin", origin.DatabaseID != "" && !origin.Copy, err)
			adopted, err := c.Adopt(ctx, admin.AdoptOptions{KeepID: true, Environment: on.name})
			check("Adopt", adopted.DatabaseID == origin.DatabaseID, err)
			if on.end != nil {
				if dead, noted := number("dead_task"), number("audit"); dead != 3 || noted != 0 {
					t.Errorf("%s: %d dead letters and %d entries before the commit, want 3 and 0", on.name, dead, noted)
				}
				check("commit", true, on.end())
			}
			if dead, noted, left := number("dead_task"), number("audit"), number("task"); dead != 1 || noted != 8 || left != 2 {
				t.Errorf("%s: %d dead letters, %d entries, %d tasks, want 1, 8, 2", on.name, dead, noted, left)
			}
			check("ResumeType", true, client(t, db.DB, admin.Options{Schema: "select"}).ResumeType(ctx, "PAUSED"))
			if number("audit") != 8 {
				t.Errorf("%s: a client without an Actor wrote an entry", on.name)
			}
		}
	}
}

// An action whose entry cannot be written is not done.
func TestAnActionAndItsEntryAreOne(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Options{Actor: "ada", Tool: "test"})
	bury(t, db, "X", "attempts", "boom", 1000, 2, 60)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
		VALUES (100, 'A', now() + interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition) VALUES ('s', 'A', '{}', '', '', '')`)
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
