package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// An entry is seen once its transaction has committed. Go and PostgreSQL have the same limits.
func TestEntriesHaveTheirLimits(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	tx := begin(t, db)
	c := client(t, db.DB).In(tx)
	long := func(n int) string { return strings.Repeat("ü", n/2) }
	most := admin.AuditEntry{Actor: long(256), Tool: long(64), Action: admin.Action(long(64)), Target: long(1024), Count: 1 << 62}
	for _, good := range []admin.AuditEntry{most, {Actor: "a", Tool: "t", Action: "a"}} {
		if _, err := c.WriteAudit(t.Context(), good); err != nil {
			t.Error(err)
		}
	}
	for field, change := range map[string]func(e *admin.AuditEntry, text string){
		"Actor":  func(e *admin.AuditEntry, text string) { e.Actor = text },
		"Tool":   func(e *admin.AuditEntry, text string) { e.Tool = text },
		"Action": func(e *admin.AuditEntry, text string) { e.Action = admin.Action(text) },
		"Target": func(e *admin.AuditEntry, text string) { e.Target = text + strings.Repeat(" ", len(text)) },
		"Count":  func(e *admin.AuditEntry, _ string) { e.Count = -1 },
	} {
		for _, text := range []string{"", long(1024) + "x", "\xff", "a\x00"} {
			e := most
			change(&e, text)
			_, err := c.WriteAudit(t.Context(), e)
			refused := errors.Is(err, outbox.ErrInvalidOption) && strings.Contains(err.Error(), field)
			if allowed := text == "" && field == "Target"; refused == allowed {
				t.Errorf("%s %q: %v, want ErrInvalidOption", field, text, err)
			}
		}
	}
	for _, row := range []string{
		"'', 't', 'a', '', 0", "'a', '', 'a', '', 0", "'a', 't', '', '', 0", "repeat('x', 257), 't', 'a', '', 0",
		"'a', repeat('x', 65), 'a', '', 0", "'a', 't', repeat('x', 65), '', 0", "'a', 't', 'a', repeat('x', 1025), 0",
		"'a', 't', 'a', '', -1",
	} {
		_, err := db.Exec(`INSERT INTO outbox.audit (actor, tool, action, target, count) VALUES (` + row + `)`)
		if err == nil || !strings.Contains(err.Error(), "audit_") {
			t.Errorf("%s: %v, want a violated CHECK", row, err)
		}
	}
	for _, want := range []int{0, 3} {
		if seen, err := client(t, db.DB).Audit(t.Context(), admin.AuditQuery{}); err != nil || len(seen.Entries) != want {
			t.Errorf("%d entries, %v, want %d", len(seen.Entries), err, want)
		}
		if want == 0 {
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestATaskHasItsEntries(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target)
		SELECT 'ada', 'test', 'try', unnest('{task 7,task 70,"tasks 7, 8",task 7 of type MAIL,TASK 7,task 8}'::text[])`)
	entries, next, err := entriesOf(client(t, db.DB).Audit(t.Context(), admin.AuditQuery{TaskID: 7, Limit: 2}))
	if err != nil || len(entries) != 2 || entries[0].Target != "task 7 of type MAIL" || entries[1].Target != "task 7" {
		t.Errorf("got %+v, %v, want the entries of task 7 alone, the latest first", entries, err)
	}
	older, err := client(t, db.DB).Audit(t.Context(), admin.AuditQuery{TaskID: 7, After: fmt.Sprint("audit.", entries[0].ID)})
	if err != nil || next != "" || len(older.Entries) != 1 || older.Entries[0] != entries[1] {
		t.Errorf("got %q and %+v, %v, want the older entry", next, older, err)
	}
}

// Entries name all tasks that were changed and no others; where these are too many for one, there
// are more, of one transaction. A target that is too long is cut.
func TestEntriesNameTheTasksThatWereChanged(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "MANY", "attempts", "x", 1_000_000, 600, 60)
	chosen := admin.DeadFilter{}
	for i := range int64(1000) {
		chosen.IDs = append(chosen.IDs, 1_000_000+i)
	}
	for _, want := range []int{600, 0} { // an action on no task is not noted
		if moved, err := c.Redrive(t.Context(), chosen, admin.Bulk{}); err != nil || len(moved.IDs) != want {
			t.Fatalf("got %d, %v, want %d", len(moved.IDs), err, want)
		}
	}
	entries, _ := pages(t, 5, func(after string) ([]admin.AuditEntry, string, error) {
		return entriesOf(c.Audit(t.Context(), admin.AuditQuery{After: after, Limit: 5}))
	})
	var named []string
	for _, e := range entries {
		ids := strings.Split(strings.TrimPrefix(e.Target, "tasks "), ", ")
		named = append(ids, named...)
		same := e.At == entries[0].At && e.Actor == "ada" && e.Tool == "test" && e.Action == "redrive"
		if int64(len(ids)) != e.Count || len(e.Target) > 1024 || !same {
			t.Errorf("the entry is %+v", e)
		}
	}
	if want := strings.Trim(fmt.Sprint(chosen.IDs[:600]), "[]"); strings.Join(named, " ") != want || len(entries) > 13 {
		t.Errorf("%d entries name %s", len(entries), named)
	}
	long := admin.DeadFilter{Error: strings.Repeat("ü", 1000)}
	bury(t, db, "LONG", "attempts", long.Error, 2_000_000, 1, 60)
	if purged, err := c.Purge(t.Context(), long, admin.Bulk{}); err != nil || len(purged.IDs) != 1 {
		t.Errorf("got %v, %v", purged, err)
	}
	after, err := c.Audit(t.Context(), admin.AuditQuery{})
	if got := after.Entries[0].Target; err != nil || len(got) > 1024 || !strings.HasSuffix(got, "ü…") {
		t.Errorf("the target is %s, %v", got, err)
	}
}

// An action in several transactions is noted before it and after it, with its result.
func TestHandingBackIsNotedBeforeItAndAfterIt(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	lease(t, db, deadRelay, 1001)
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$;
		CREATE TRIGGER boom BEFORE UPDATE ON outbox.task FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
	if n, err := c.HandBack(t.Context(), deadRelay); n != 0 || err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("got %d, %v", n, err)
	}
	db.Do(t, `DROP TRIGGER boom ON outbox.task; DROP FUNCTION outbox.boom`)
	if n, err := c.HandBack(t.Context(), strings.ToUpper(deadRelay)); n != 1001 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND relay_id IS NOT NULL`); n != 1001 {
		t.Errorf("%d tasks are ready and suspect, want 1001", n)
	}
	got := db.Text(t, `SELECT string_agg(concat_ws(' ', action, count), ', ' ORDER BY entry_id) FROM outbox.audit
		WHERE lower(target) = 'relay `+deadRelay+`'`)
	if want := "hand_back 0, hand_back: failed 0, hand_back 0, hand_back: done 1001"; got != want {
		t.Errorf("the audit log has %s, want %s", got, want)
	}
	db.Do(t, `DELETE FROM outbox.task`)
}
