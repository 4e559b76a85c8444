package dashboard_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/dashboard"
)

// An entry names all tasks that were moved and no others; where these are too many for one, there are more.
func TestEntriesNameTheTasksThatWereMoved(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "MANY", "attempts", "x", 1_000_000, 600)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	form := url.Values{}
	for i := range 1000 {
		form.Add("id", fmt.Sprint(1_000_000+i))
	}
	s.post(t, "redrive", form).has(t, 303)
	entries, err := audit.List(t.Context(), db, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, e := range entries {
		ids := strings.Split(strings.TrimPrefix(strings.TrimPrefix(e.Target, "task "), "tasks "), ", ")
		if int64(len(ids)) != e.Count || len(e.Target) > 1024 || e.At != entries[0].At {
			t.Errorf("the entry counts %d and names %q", e.Count, e.Target)
		}
		for _, id := range ids {
			named[id] = true
		}
	}
	for i := range 600 {
		if !named[fmt.Sprint(1_000_000+i)] {
			t.Errorf("task %d was redriven and is in no entry", 1_000_000+i)
		}
	}
	if len(named) != 600 || len(entries) > 8 {
		t.Errorf("%d entries name %d tasks, want 600", len(entries), len(named))
	}
	s.post(t, "redrive", url.Values{"id": {"5", "6"}}).has(t, 303)
	if after, err := audit.List(t.Context(), db, 0, 0); err != nil || len(after) != len(entries) {
		t.Errorf("nothing was moved, and the log goes from %d entries to %d, %v", len(entries), len(after), err)
	}
}

// Handing back is noted before it and after it, with what came of it.
func TestHandingBackThatFailsIsNotedAsThat(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	fill(t, db)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	exec(t, db, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$`)
	exec(t, db, `CREATE TRIGGER boom BEFORE UPDATE ON outbox.task FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
	const gone = "0197a1e0-1a00-7000-8000-00000000dead"
	s.post(t, "hand-back", url.Values{"relay": {gone}}).has(t, 500)
	if got, want := s.last(t), `ada@example.com dashboard hand_back: failed "relay `+gone+`" 0`; got != want {
		t.Errorf("the audit log ends with %s, want %s", got, want)
	}
	if n := number(t, db, `SELECT count(*) FROM outbox.audit WHERE action = 'hand_back' AND count = 0`); n != 1 {
		t.Errorf("%d entries say that it began, want 1", n)
	}
}
