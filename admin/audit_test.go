package admin_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

var entry = admin.Entry{Actor: "ada <ada@example.com>", Tool: "dashboard", Action: "redrive", Target: `type "A'; --", error like %x%`, Count: 42}

func TestAnEntryIsThereWhenItsTransactionHasCommitted(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		for _, commit := range []bool{false, true} {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.In(tx).WriteAudit(t.Context(), entry)
			want := entry
			want.EntryID, want.At = got.EntryID, got.At
			if err != nil || got.EntryID < 1 || time.Since(got.At).Abs() > time.Hour || got != want {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
			if before, _, err := c.Audit(t.Context(), admin.Page{}); err != nil || len(before) != 0 {
				t.Errorf("before the commit: %+v, %v", before, err)
			}
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			after, _, err := c.Audit(t.Context(), admin.Page{})
			if err != nil || commit != slices.Equal(after, []admin.Entry{got}) {
				t.Errorf("committed %v: %+v, %v", commit, after, err)
			}
		}
	})
}

// What Go lets pass PostgreSQL takes, and what Go refuses is refused before any SQL.
func TestEntriesHaveTheirLimits(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	long := func(n int) string { return strings.Repeat("ü", n/2) }
	most := admin.Entry{Actor: long(256), Tool: long(64), Action: long(64), Target: long(1024), Count: 1 << 62}
	for _, good := range []admin.Entry{most, {Actor: "a", Tool: "t", Action: "a"}} {
		if _, err := client(t, db.DB).In(tx).WriteAudit(t.Context(), good); err != nil {
			t.Error(err)
		}
	}
	for field, change := range map[string][]func(*admin.Entry){
		"Actor":  {func(e *admin.Entry) { e.Actor = "" }, func(e *admin.Entry) { e.Actor += "x" }, func(e *admin.Entry) { e.Actor = "\xff" }},
		"Tool":   {func(e *admin.Entry) { e.Tool = "" }, func(e *admin.Entry) { e.Tool += "x" }, func(e *admin.Entry) { e.Tool = "a\x00" }},
		"Action": {func(e *admin.Entry) { e.Action = "" }, func(e *admin.Entry) { e.Action += "x" }},
		"Target": {func(e *admin.Entry) { e.Target += "x" }, func(e *admin.Entry) { e.Target = "\x00" }},
		"Count":  {func(e *admin.Entry) { e.Count = -1 }},
	} {
		for _, f := range change {
			e := most
			f(&e)
			if _, err := client(t, db.DB).In(tx).WriteAudit(t.Context(), e); !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v, want ErrInvalidOption", field, err)
			}
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL AND state LIKE '%aborted%' AND datname = current_database()`); n != 0 {
		t.Error("something reached the server")
	}
	// In SQL, the same limits.
	for _, row := range []string{"'', 't', 'a', '', 0", "'a', '', 'a', '', 0", "'a', 't', '', '', 0", "repeat('x', 257), 't', 'a', '', 0", "'a', repeat('x', 65), 'a', '', 0",
		"'a', 't', repeat('x', 65), '', 0", "'a', 't', 'a', repeat('x', 1025), 0", "'a', 't', 'a', '', -1"} {
		if _, err := db.Exec(`INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES (` + row + `)`); err == nil || !strings.Contains(err.Error(), "audit_") {
			t.Errorf("%s: %v, want a violated CHECK", row, err)
		}
	}
}

func TestATaskHasItsEntries(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for _, target := range []string{"task 7", "task 70", "tasks 7, 8", "task 7 of type MAIL", "TASK 7", "task 8"} {
		db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ('ada', 'test', 'try', $1)`, target)
	}
	entries, err := client(t, db.DB).TaskAudit(t.Context(), 7)
	if err != nil || len(entries) != 2 || entries[0].Target != "task 7 of type MAIL" || entries[1].Target != "task 7" || entries[1].Actor != "ada" {
		t.Errorf("got %+v, %v, want the entries of task 7 alone, the latest first", entries, err)
	}
}

// Entries name all tasks that were changed and no others; where these are too many for one, there
// are more, of one transaction.
func TestEntriesNameTheTasksThatWereChanged(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Options{Actor: "ada", Tool: "test"})
	bury(t, db, "MANY", "attempts", "x", 1_000_000, 600, 60)
	var chosen []int64
	for i := range 1000 {
		chosen = append(chosen, int64(1_000_000+i))
	}
	if moved, _, err := c.Redrive(t.Context(), admin.Filter{IDs: chosen}, admin.Page{}); err != nil || len(moved.IDs) != 600 {
		t.Fatalf("got %d, %v, want 600", len(moved.IDs), err)
	}
	entries, _ := pages(t, admin.Page{Limit: 5}, func(p admin.Page) ([]admin.Entry, string, error) { return c.Audit(t.Context(), p) })
	if !slices.IsSortedFunc(entries, func(a, b admin.Entry) int { return cmp.Compare(b.EntryID, a.EntryID) }) {
		t.Errorf("the latest is not the first: %+v", entries)
	}
	named := map[string]bool{}
	for _, e := range entries {
		ids := strings.Split(strings.TrimPrefix(strings.TrimPrefix(e.Target, "task "), "tasks "), ", ")
		if int64(len(ids)) != e.Count || len(e.Target) > 1024 || e.At != entries[0].At || e.Actor != "ada" || e.Tool != "test" || e.Action != "redrive" {
			t.Errorf("the entry is %+v", e)
		}
		for _, id := range ids {
			named[id] = true
		}
	}
	for _, id := range chosen[:600] {
		if !named[fmt.Sprint(id)] {
			t.Errorf("task %d was redriven and is in no entry", id)
		}
	}
	if len(named) != 600 || len(entries) > 13 {
		t.Errorf("%d entries name %d tasks, want 600", len(entries), len(named))
	}
	// What is about no task is not noted, and a target that is too long is cut.
	if moved, _, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{5, 6}}, admin.Page{}); err != nil || len(moved.IDs) != 0 {
		t.Errorf("got %v, %v", moved, err)
	}
	long := admin.Filter{Error: strings.Repeat("ü", 1000)}
	bury(t, db, "LONG", "attempts", long.Error, 2_000_000, 1, 60)
	if purged, _, err := c.Purge(t.Context(), long, admin.Page{}); err != nil || len(purged.IDs) != 1 {
		t.Errorf("got %v, %v", purged, err)
	}
	after, _, err := c.Audit(t.Context(), admin.Page{})
	if err != nil || len(after) != len(entries)+1 || !strings.HasPrefix(after[0].Target, "dead letters: error containing \"üü") || !strings.HasSuffix(after[0].Target, "ü…") {
		t.Errorf("got %+v, %v", after[0], err)
	}
}

// What takes no transaction is noted before it and after it, with what came of it.
func TestHandingBackIsNotedBeforeItAndAfterIt(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB, admin.Options{Actor: "ada", Tool: "test"})
		db.Do(t, `INSERT INTO outbox.task (task_type, state, relay_id, lease_token) SELECT 'HELD', 'leased', $1, gen_random_uuid() FROM generate_series(1, 1001)`, deadRelay)
		noted := func(want ...string) {
			t.Helper()
			entries, _, err := c.Audit(t.Context(), admin.Page{Limit: len(want)})
			var got []string
			for _, e := range entries {
				got = append([]string{fmt.Sprintf("%s %s %d", e.Action, e.Target, e.Count)}, got...)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("the audit log ends with %q, %v, want %q", got, err, want)
			}
		}
		db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$;
			CREATE TRIGGER boom BEFORE UPDATE ON outbox.task FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
		if n, err := c.HandBack(t.Context(), deadRelay); n != 0 || err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("got %d, %v", n, err)
		}
		noted("hand_back relay "+deadRelay+" 0", "hand_back: failed relay "+deadRelay+" 0")
		db.Do(t, `DROP TRIGGER boom ON outbox.task; DROP FUNCTION outbox.boom`)
		if n, err := c.HandBack(t.Context(), strings.ToUpper(deadRelay)); n != 1001 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND relay_id IS NOT NULL`); n != 1001 {
			t.Errorf("%d tasks are ready and suspect, want 1001", n)
		}
		noted("hand_back relay "+strings.ToUpper(deadRelay)+" 0", "hand_back: done relay "+strings.ToUpper(deadRelay)+" 1001")
		db.Do(t, `DELETE FROM outbox.task`)
	})
}
