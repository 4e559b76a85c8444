package dashboard_test

import (
	"net/url"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
)

// Handing back is noted before it and after it, with what came of it.
func TestHandingBackThatFailsIsNotedAsThat(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db)
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
