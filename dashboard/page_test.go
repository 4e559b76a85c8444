package dashboard_test

import (
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// The consumer of an event knows the task by its key.
func TestATaskIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	key := db.Text(t, `SELECT concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3), '-8000-',
		lpad(to_hex(900001), 12, '0')) FROM outbox.identity`)
	s.get(t, "task?id="+key).leads(t, "./task?id=900001")
	s.get(t, "task?id=900001").has(t, 200, "Key "+key)
	s.get(t, "task?id=11111111-1111-8111-8000-0000000dbba1").has(t, 404, "There is no such task")
	s.get(t, "task?id=1-1").has(t, 400)
}

func TestPagesShowWhatIsThere(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	scheduled := db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE task_type = 'SEND_WELCOME'
		AND state = 'scheduled'`)
	leased := db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = 'leased'`)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target)
		VALUES ('grace@example.com', 'test', 'mark', 'task 900001')`)
	db.Do(t, `UPDATE outbox.task SET iterations = 7 WHERE task_type = 'LEDGER'`)
	db.Do(t, `UPDATE outbox.dead_task SET iterations = 7 WHERE task_id = 900103`)
	for path, wants := range map[string][]string{
		"": {"Ready 1,975", "Scheduled 36", "Retrying 9", "Leased 16", "Waiting 60", "Dead 53",
			"SYNC_CRM paused failing", "LEDGER no relay",
			"web-1.fra",
			"RESIZE_IMAGE × 7", "GRANT_CREDIT × 5", "web-0.fra pid 3999 dead"},
		"type?name=SEND_WELCOME": {"Pause this type", "ready 120", "dead 40", "Relays with a handler 2"},
		"type?name=SYNC_CRM": {"SYNC_CRM paused", "More runs fail than tasks finish: failed runs: ",
			"Resume this type", "100 in 1 min",
			"At once in all relays 4"},
		"type?name=LEDGER":                      {"Relays with a handler none", "waiting 60", "Iterations Last error"},
		"type?name=SEND_WELCOME&state=retrying": {"Error Tasks Latest attempt"},
		"type?name=SEND_WELCOME&state=dead":     {"900001", "recipient address rejected"},
		"type?name=RESIZE_IMAGE&state=finished": {"handlers.Retention keeps them"},
		"type?name=NEVER":                       {"No task of this type was ever enqueued"},
		"task?id=899741": {"attempt 6 failed after 5.1s, dead letter: all attempts were used",
			"redriven by grace@example.com",
			"attempt 1 finished", "Kept until"},
		"task?id=900001": {"Task 900001 dead", "all attempts were used", "10 of 10", "Redrive",
			"recipient address rejected",
			"enqueued", "Show the payload", "Audit When Actor Action Tool", "grace@example.com mark test"},
		fmt.Sprint("task?id=", scheduled): {"retrying", "Run now", "Cancel", "421 4.3.2", "attempt 3 failed",
			"attempt 2 lost: its process died", "Last error attempt 3"},
		fmt.Sprint("task?id=", leased): {"leased", "Cancel", "running, on relay 0197a1f2-7c11"},
		"dead": {"53 dead letters", "900101", "welcome: user 8123 has no address", "All: Redrive… Purge…",
			"smtp: 550 5.1.1 <nobody@exmaple.com>: recipient address rejected: user unknown SEND_WELCOME 37"},
		"dead?reason=handler": {"3 of 53 dead letters", "900103", "Type Iterations Error",
			"All that match: Redrive… Purge…"},
		"dead?error=no+such+text": {"No dead letter matches."},
		"tasks": {"All: Cancel… Run now… Reschedule… Set priority… Retype…", "RESIZE_IMAGE dead",
			"Task Type State Iterations Error Attempts Priority Enqueued Due, began or ended"},
		"tasks?type=SEND_WELCOME&state=retrying&error=421": {"9 of 9 retrying tasks of type SEND_WELCOME",
			"All that match: Cancel…", "421 4.3.2 mx.example.com: service not available SEND_WELCOME 9"},
		"tasks?state=leased": {"Show all 16 leased tasks All that match: Cancel… Task"},
		"tasks?type=LEDGER":  {"Tasks of type LEDGER", "LEDGER waiting 7"},
		"schedules":          {"daily report", "0 8 * * *", "sync crm paused"},
		"relays":             {"web-2.fra", "Hand back its tasks", "Workers 20", "Connections 22"},
		"audit":              {"grace@example.com", "purge", "1,204"},
	} {
		s.get(t, path).has(t, 200, wants...)
	}
	if body := s.get(t, "audit").body; !strings.Contains(body, `<a href="./task?id=899741">`) {
		t.Error("an audit entry does not lead to its task")
	}
	for status, paths := range map[int]string{
		404: "none task?id=77777 type", 405: "pause",
		400: "task?id=x task type?name=X&state=lost dead?older=1y dead?reason=bad dead?after=x audit?after=x bulk " +
			"type?name=X&after=%00 dead?type=%ff type?name=%00 " +
			"tasks?state=lost tasks?reason=handler dead?state=dead tasks?after=x tasks?payload={ " +
			"bulk?do=drop bulk?do=cancel&state=finished",
	} {
		for path := range strings.FieldsSeq(paths) {
			s.get(t, path).has(t, status)
		}
	}
}

func TestListsGoOnPageByPage(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target)
		SELECT 'x', 'test', 'act', 'target ' || n FROM generate_series(1, 120) n`)
	ids := regexp.MustCompile(`id="task-(\d+)"|target (\d+)`)
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	for path, want := range map[string]int{"type?name=SEND_WELCOME&state=ready": 120, "dead": 53, "audit": 120,
		"tasks?type=SEND_WELCOME": 170, "tasks?error=smtp": 46} {
		seen := map[string]bool{}
		pages := 0
		for at := []string{"", path}; at != nil; pages++ {
			a := s.get(t, html.UnescapeString(at[1]))
			for _, m := range ids.FindAllStringSubmatch(a.body, -1) {
				if seen[m[0]] {
					t.Fatalf("%s: %s is on two pages", path, m[0])
				}
				seen[m[0]] = true
			}
			at = next.FindStringSubmatch(a.body)
		}
		if len(seen) != want || pages != want/50+1 {
			t.Errorf("%s: %d rows on %d pages, want %d rows", path, len(seen), pages, want)
		}
	}
}

// A dead relay is an alarm while tasks of it are not taken over yet. A relay that was killed is not
// alive, though its leases last for some seconds.
func TestRelaysShowHowTheyAre(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		SELECT gen_random_uuid(), host, 7, clock_timestamp() + until::interval, '{}'
		FROM (VALUES ('quiet.fra', '-9 minutes'), ('killed.fra', '3900 milliseconds')) AS r (host, until)`)
	for _, path := range []string{"relays", ""} {
		a := s.get(t, path)
		a.has(t, 200, "quiet.fra pid 7 dead")
		if strings.Count(a.body, `<span class="badge bad">dead</span>`) != 1 {
			t.Errorf("%q: not only the relay with leases is an alarm", path)
		}
		if !regexp.MustCompile(`killed.fra pid 7 (missing|dead)`).MatchString(a.text()) { // dead on a machine that is busy
			t.Errorf("the page does not show the killed one as missing: %s", a.text())
		}
	}
}

func TestPagesSayThatTheDatabaseIsACopy(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	const text = "Relays run no task here, as this database may be a copy of"
	if body := s.get(t, "audit").body; strings.Contains(body, text) {
		t.Error("it is none")
	}
	db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
	s = serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessView)})
	for _, page := range []string{"", "dead", "relays", "audit"} {
		s.get(t, page).has(t, 200, text)
		s.get(t, page, "HX-Request", "true").has(t, 200, text)
	}
	s.get(t, "task?id=999999").has(t, 404, text)
}

func TestPagesSayThatRelaysAreOfAnotherEnvironment(t *testing.T) {
	t.Parallel()
	db, _ := filled(t)
	db.Do(t, `SELECT outbox.note_origin('production')`)
	s := serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessView)})
	s.get(t, "audit").has(t, 200, "environment production")
	db.Do(t, `SELECT outbox.note_origin('staging')`)
	s = serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessView)})
	for _, page := range []string{"", "dead", "schedules", "relays", "audit"} {
		s.get(t, page).has(t, 200, "Relays of the environment “staging” run no task here, as this database may be a copy, "+
			"or the wrong one", "outbox adopt -environment staging")
	}
}

func TestPollsGetWhatHasChanged(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	have := regexp.MustCompile(`"Outbox-Have":"([0-9a-f]+)"`).FindStringSubmatch(html.UnescapeString(s.get(t,
		"audit").body))
	if have == nil {
		t.Fatal("the page does not poll")
	}
	poll := []string{"HX-Request", "true", "Outbox-Have", have[1]}
	s.get(t, "audit", poll...).has(t, 204)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ('eve', 'test', 'look', 'around')`)
	part := s.get(t, "audit", poll...)
	if part.has(t, 200, "eve"); strings.Contains(part.body, "<html") ||
		!strings.HasPrefix(part.body, `<div id="live"`) {
		t.Errorf("a poll gets a whole page: %s", part.body)
	}
	// A search that reads all there is runs when asked, and a list with buttons on its rows stays.
	viewer := serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessView)})
	for path, polls := range map[string]bool{"": true, "dead": true, "dead?type=SEND_WELCOME&older=1h": true,
		"dead?error=user": false, "dead?reason=handler": false, "tasks": true, "tasks?state=dead": true,
		"tasks?type=SYNC_CRM&state=ready": true, "tasks?type=SYNC_CRM": false, "tasks?state=ready": false,
		"tasks?error=user": false} {
		if got := strings.Contains(viewer.get(t, path).body, "hx-trigger"); got != polls {
			t.Errorf("%s: it polls: %v, want %v", path, got, polls)
		}
	}
	if a := s.get(t, "dead"); strings.Contains(a.body, "hx-trigger") ||
		!strings.Contains(a.body, `id="again" href="./dead"`) {
		t.Errorf("a list with buttons polls: %s", a.body)
	}
	if off := s.get(t, "", "Cookie", "outbox_updates=off"); strings.Contains(off.body, "hx-trigger") {
		t.Error("a page polls though its viewer has stopped that")
	}
}

func TestSettingsAreACookieAndLeadBack(t *testing.T) {
	t.Parallel()
	s := serve(t, newDatabase(t), dashboard.Config{Authorize: as(dashboard.AccessView), ReadOnly: true})
	for back, want := range map[string]string{
		"./dead?type=A%26B": "./dead?type=A%26B", "./dead?type=A&ok=paused&n=1": "./dead?type=A",
		"": "./", "https://example.com/": "./", "//example.com": "./", "./pause": "./", "./../x": "./",
	} {
		a := s.post(t, "settings", url.Values{"updates": {"off"}, "back": {back}}.Encode())
		a.leads(t, want)
		c := a.header.Get("Set-Cookie")
		if !strings.HasPrefix(c, "outbox_updates=off;") || !strings.Contains(c, "HttpOnly") ||
			!strings.Contains(c, "SameSite=Lax") {
			t.Errorf("the cookie is %q", c)
		}
	}
}

func TestADashboardOfAnotherSchemaAndPath(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, schema.Schema("shop_outbox"))
	db.Do(t, `INSERT INTO shop_outbox.task (task_type) SELECT 'SHIP' FROM generate_series(1, 7)`)
	config := dashboard.Config{Schema: "shop_outbox", Authorize: as(everything), Logger: slog.New(slog.DiscardHandler)}
	d, err := dashboard.New(db.DB, config)
	if err != nil {
		t.Fatal(err)
	}
	config.BasePath = "/q/"
	bare, err := dashboard.New(db.DB, config) // mounted without the slash
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/queue/", http.StripPrefix("/admin/queue", d))
	mux.Handle("/", bare)
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{"": "SHIP", "type?name=SHIP": "ready 7", "relays": "no task runs",
		"dead": "no dead letters", "schedules": "no schedules", "audit": "Nothing was done"} {
		send(t, server, "GET", "/admin/queue/"+path, nil).has(t, 200, want)
	}
	send(t, server, "POST", "/admin/queue/pause", url.Values{"name": {"SHIP"}}).leads(t,
		"./type?n=1&name=SHIP&ok=paused")
	if n := db.Int(t, `SELECT count(*) FROM shop_outbox.audit`); n != 1 {
		t.Errorf("the audit log has %d entries, want 1", n)
	}
	if a := send(t, server, "GET", "/q", nil); a.status != 301 || a.header.Get("Location") != "./q/" {
		t.Errorf("/q: got %d %q", a.status, a.header.Get("Location"))
	}
	send(t, server, "GET", "/elsewhere", nil).has(t, 404)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := dashboard.New(nil, dashboard.Config{Schema: "Bad-Name", BasePath: "/a/../b", StatementTimeout: -1,
		TrustedOrigins: []string{"admin.example.com"}})
	for _, want := range []string{"*sql.DB is nil", "Config.Schema", "Config.BasePath", "Config.StatementTimeout",
		"Config.TrustedOrigins"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
}

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

// A search of many dead letters answers with how far it has come, after each 10,000.
func TestASearchThatTakesLongGoesOn(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", "boom", 1, 35_000) // 1 is the latest
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id IN (1500, 30001, 30002)`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	ids := regexp.MustCompile(`id="task-[0-9]+"`)
	path := "dead?error=rare"
	for i, c := range []struct {
		rows []string
		says string
	}{
		{[]string{`id="task-1500"`}, "It has searched those that died since"},
		{nil, "No dead letter matches among those that died since"},
		{nil, "Searching older ones…"},
		{[]string{`id="task-30001"`, `id="task-30002"`}, "First page"},
	} {
		a := s.get(t, path)
		a.has(t, 200, c.says)
		if got := ids.FindAllString(a.body, -1); !slices.Equal(got, c.rows) {
			t.Errorf("page %d has %v, want %v", i, got, c.rows)
		}
		m := next.FindStringSubmatch(a.body)
		if (m == nil) != (i == 3) {
			t.Fatalf("page %d leads to %v", i, m)
		}
		if m != nil {
			path = html.UnescapeString(m[1])
		}
	}
	// A list that an index reaches is no search.
	if a := s.get(t, "dead?type=MAIL"); strings.Contains(a.body, "older ones") ||
		!strings.Contains(a.body, "Next page") {
		t.Errorf("a list of a type: %s", a.text())
	}
	// The question before a bulk action says what it knows, and the action finds all.
	ask := s.get(t, "bulk?do=redrive&error=rare")
	ask.has(t, 200, "At least 1 dead letter", "Counting all of them takes too long.", "Redrive all of them")
	s.bulk(t, ask).has(t, 200, "3 redriven", "Done.")
	s.get(t, "bulk?do=purge&error=none+has+this").has(t, 200, "Their number is not known.")
}
