package dashboard_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// No statement of a page may write, or take longer than it is allowed to.
func TestPagesAreReadOnlyAndBounded(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	s := serve(t, db, dashboard.Config{Authorize: as(everything), StatementTimeout: time.Second})
	unlock := db.Hold(t, `LOCK TABLE outbox.dead_task, outbox.audit, outbox.schedule IN ACCESS EXCLUSIVE MODE`)
	for _, path := range []string{"dead", "schedules", "dead?error=x"} {
		s.get(t, path).has(t, 503, "took longer than 1s", "while no relay works")
	}
	// A page that polls says so, and does not ask for it every 2 s.
	poll := []string{"HX-Request", "true", "Outbox-Have", "x"}
	a := s.get(t, "audit", poll...)
	a.has(t, 200, "took longer than 1s", "Try again")
	if a.header.Get("HX-Reswap") != "outerHTML" || !strings.HasPrefix(a.body, `<div id="live">`) {
		t.Errorf("a poll gets %v %s", a.header, a.body)
	}
	// A bulk action asks with what it knows by then.
	s.get(t, "bulk?do=redrive&error=x").has(t, 200, "Their number is not known.", "takes too long")
	unlock()
	// An action may take twice as long, and says how long.
	db.Do(t, `CREATE FUNCTION outbox.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN OLD; END $$`)
	db.Do(t, `CREATE TRIGGER slow BEFORE DELETE ON outbox.dead_task FOR EACH ROW EXECUTE FUNCTION outbox.slow()`)
	s.post(t, "redrive", "one=900001").has(t, 503, "took longer than 2s")
	// After another error a page that polls goes on.
	s = serve(t, db, dashboard.Config{Authorize: as(everything), StatementTimeout: 9 * time.Second})
	db.Do(t, `ALTER TABLE outbox.audit RENAME TO elsewhere`)
	if a := s.get(t, "audit", poll...); !strings.HasPrefix(a.body,
		`<div id="live" hx-get="./audit" hx-trigger="every 2s"`) {
		t.Errorf("a poll gets %v %s", a.header, a.body)
	}
	db.Do(t, `ALTER TABLE outbox.elsewhere RENAME TO audit`)

	// Rows that only such a transaction sees.
	for _, table := range []string{"audit", "schedule", "dead_task", "relay"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` RENAME TO `+table+`_rows`)
		db.Do(t, `CREATE VIEW outbox.`+table+` AS SELECT * FROM outbox.`+table+`_rows
			WHERE current_setting('transaction_read_only') = 'on' AND current_setting('statement_timeout') = '9s'`)
	}
	for path, want := range map[string]string{"audit": "grace@example.com", "schedules": "daily report",
		"dead":   "900001",
		"relays": "web-1.fra", "task?id=900001": "all attempts were used"} {
		s.get(t, path).has(t, 200, want)
	}
}

// internal/testing/rights tests the rights of each role.
func TestRolesOfTheDatabaseAreEnough(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	if err := schema.GrantRoles(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	viewer := serve(t, relaytest.Open(t, db.URL+"&role=outbox_viewer"), dashboard.Config{Authorize: as(everything)})
	for _, path := range allPages {
		viewer.get(t, path).has(t, 200)
	}
	const denied = "The database role of this dashboard may not do this."
	viewer.get(t, "task?id=900001&payload=show").has(t, 500, denied)
	viewer.post(t, "pause", "name=SEND_WELCOME").has(t, 500, denied)
}

// Many viewers share what they look at: while it is read once, all others wait for that.
func TestViewersShareTheCounts(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	var arrived atomic.Int32
	s := serve(t, db, dashboard.Config{Authorize: func(*http.Request) dashboard.User {
		arrived.Add(1)
		return dashboard.User{Access: dashboard.AccessView}
	}})
	unlock := db.Hold(t, `LOCK TABLE outbox.counter IN ACCESS EXCLUSIVE MODE`)
	var viewers sync.WaitGroup
	for range 20 {
		viewers.Go(func() { s.get(t, "relays").has(t, 200, "web-1.fra") })
	}
	most := 0
	relaytest.Eventually(t, 20*time.Second, "all viewers are there and one reads", func() bool {
		n := db.Int(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		most = max(most, n)
		return n > 0 && arrived.Load() == 20
	})
	unlock()
	viewers.Wait()
	if most != 1 {
		t.Errorf("%d of 20 viewers read the counts at once, want 1", most)
	}
}

// A page waits for no transaction, also where reads ask for a snapshot that no other one can break.
func TestPagesWaitForNoSerializableTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	release := db.Hold(t, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; INSERT INTO outbox.task (task_type) VALUES ('A')`)
	defer release()
	pool := relaytest.Open(t, db.URL+"&default_transaction_isolation=serializable&default_transaction_deferrable=on",
		"postgres")
	serve(t, pool, dashboard.Config{Authorize: as(everything)}).get(t, "dead").has(t, 200)
}
