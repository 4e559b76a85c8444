package dashboard_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

const secret = "hunter2-in-the-payload"

var actions = map[string]string{"pause": "name=SEND_WELCOME", "resume": "name=SYNC_CRM", "cancel": "id=1", "run-now": "id=1", "redrive": "one=900001", "pause-schedule": "name=daily report", "resume-schedule": "name=sync crm",
	"hand-back": "relay=0197a1e0-1a00-7000-8000-00000000dead", "bulk": "do=purge&until=9000000000000000"}

// changed is a number that is another one after any action.
func changed(t testing.TB, db *relaytest.Database) int {
	t.Helper()
	return db.Int(t, `SELECT (SELECT count(*) FROM outbox.audit) + 10 * (SELECT count(*) FROM outbox.task_type WHERE paused) + 100 * (SELECT count(*) FROM outbox.schedule WHERE paused) +
		1000 * (SELECT count(*) FROM outbox.task) + 100000 * (SELECT count(*) FROM outbox.dead_task) + 10000000 * (SELECT count(*) FROM outbox.task WHERE state = 'leased') + (SELECT count(*) FROM outbox.cancel)`)
}

func TestEachRoleMayDoWhatItIsForAndNothingElse(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	db.Do(t, `UPDATE outbox.dead_task SET payload = jsonb_build_object('password', $1::text), headers = jsonb_build_object('h', $1::text)`, secret)
	db.Do(t, `UPDATE outbox.task SET payload = jsonb_build_object('password', $1::text), headers = jsonb_build_object('h', $1::text)`, secret)
	all := append([]string{"task?id=1&payload=show", "task?id=900001&payload=show", "payload?id=900001"}, allPages...)
	type role struct {
		config   dashboard.Config
		view     int // the status of pages
		operate  bool
		payloads bool
	}
	for name, r := range map[string]role{
		"no authorizer":           {dashboard.Config{}, 403, false, false},
		"nothing":                 {dashboard.Config{Authorize: as(0)}, 403, false, false},
		"view":                    {dashboard.Config{Authorize: as(dashboard.View)}, 200, false, false},
		"payloads":                {dashboard.Config{Authorize: as(dashboard.ViewPayloads)}, 200, false, true},
		"operate":                 {dashboard.Config{Authorize: as(dashboard.Operate)}, 200, true, false},
		"read-only":               {dashboard.Config{Authorize: as(everything), ReadOnly: true}, 200, false, true},
		"nobody":                  {dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) { return everything, "" }}, 200, false, false},
		"payloads for no name":    {dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.ViewPayloads, "" }}, 200, false, false},
		"a name that is too long": {dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) { return everything, strings.Repeat("x", 257) }}, 200, false, false},
		"bits of no meaning":      {dashboard.Config{Authorize: as(0xf8)}, 403, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, db, r.config)
			for _, path := range all {
				a := s.get(t, path)
				want := r.view
				if strings.HasPrefix(path, "payload?") && want == 200 && !r.payloads {
					want = 403
				}
				if a.status != want || r.config.Authorize == nil && !strings.Contains(a.body, "Set dashboard.Config.Authorize to a function") {
					t.Errorf("GET %s: got %d, want %d: %s", path, a.status, want, a.text())
				}
				shows := strings.Contains(a.body, secret)
				if may := r.view == 200 && r.payloads && strings.Contains(path, "payload"); shows != may {
					t.Errorf("GET %s: the payload is shown: %v, want %v", path, shows, may)
				}
				if forms := regexp.MustCompile(`action="\./(\w|-)+"`).FindAllString(a.body, -1); !r.operate {
					for _, f := range forms {
						if f != `action="./settings"` && f != `action="./task"` && f != `action="./dead"` {
							t.Errorf("GET %s has the form %s", path, f)
						}
					}
				}
			}
			for _, path := range []string{"bulk?do=redrive", "bulk?do=purge", "cancel?id=1"} {
				want := map[bool]int{true: 200, false: 403}[r.operate]
				if a := s.get(t, path); a.status != want {
					t.Errorf("GET %s: got %d, want %d", path, a.status, want)
				}
			}
			if r.operate {
				return // TestEachActionIsDoneNotedAndLeadsBack
			}
			before := changed(t, db)
			for path, form := range actions {
				q, _ := url.ParseQuery(form)
				for _, headers := range [][]string{nil, {"HX-Request", "true"}} {
					a := s.post(t, path, q, headers...)
					if a.status != 403 && (headers == nil || !strings.Contains(a.text(), "read-only") && !strings.Contains(a.text(), "Your role may not")) {
						t.Errorf("POST %s: got %d, want 403: %s", path, a.status, a.text())
					}
				}
			}
			if after := changed(t, db); after != before {
				t.Errorf("something was done: %d, before %d", after, before)
			}
			if strings.Contains(s.log.String(), secret) {
				t.Error("the log has the payload")
			}
		})
	}
}

// Whoever looks at a payload is in the log, however they ask, and the page does not look again by
// itself.
func TestEachLookAtAPayloadIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	s := serve(t, db, dashboard.Config{Authorize: as(dashboard.ViewPayloads)})
	looks := func() int {
		return strings.Count(s.log.String(), `msg="outbox: dashboard: payload shown" actor=ada@example.com task=900001`)
	}
	for i, c := range []struct {
		path   string
		header []string
	}{{"task?id=900001&payload=show", nil}, {"task?id=900001&payload=show", []string{"HX-Request", "true"}}, {"task?id=900001&payload=show", []string{"HX-Request", "true", "Outbox-Have", "x"}}, {"payload?id=900001", nil},
		{"payload?id=900001", []string{"HX-Request", "true"}}} {
		a := s.get(t, c.path, c.header...)
		if a.has(t, 200, "nobody@exmaple.com"); looks() != i+1 {
			t.Errorf("%s with %v: the log has %d looks, want %d", c.path, c.header, looks(), i+1)
		}
		if strings.Contains(a.body, "hx-get") {
			t.Errorf("%s: the page asks for the payload again by itself", c.path)
		}
	}
	if a := s.get(t, "task?id=900001"); looks() != 5 || !strings.Contains(a.body, "hx-get") {
		t.Errorf("without the payload: %d looks, want 5; %s", looks(), a.body)
	}
}

// A page of another origin cannot have its visitor's browser act here, and no page of another
// origin frames or reads this one.
func TestOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	before := changed(t, db)
	for path, form := range actions {
		q, _ := url.ParseQuery(form)
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site", "HX-Request", "true"}} {
			if a := s.post(t, path, q, header...); a.status != 403 {
				t.Errorf("POST %s with %v: got %d, want 403", path, header, a.status)
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH"} {
		if a := s.send(t, method, "bulk", url.Values{}); a.status != 405 || a.header.Get("Allow") != "GET, HEAD, POST" {
			t.Errorf("%s: got %d %v", method, a.status, a.header["Allow"])
		}
	}
	s.get(t, "pause?name=SEND_WELCOME").has(t, 405)
	if after := changed(t, db); after != before {
		t.Errorf("something was done: %d, before %d", after, before)
	}
	if a := s.post(t, "pause", url.Values{"name": {"SEND_WELCOME"}}, "Sec-Fetch-Site", "same-origin", "Origin", s.URL); a.status != 303 {
		t.Errorf("its own page: got %d", a.status)
	}
}

func TestEachAnswerHasTheHeadersThatProtectIt(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	denied := serve(t, db, dashboard.Config{})
	file := regexp.MustCompile(`(?:src|href)="\./(static-[^"]+)"`)
	files := file.FindAllStringSubmatch(s.get(t, "").body, -1)
	if len(files) != 5 {
		t.Fatalf("the page has the files %v", files)
	}
	answers := map[string]answer{"denied": denied.get(t, ""), "cross": s.post(t, "pause", url.Values{}, "Sec-Fetch-Site", "cross-site"), "redirect": s.post(t, "settings", url.Values{}), "none": s.get(t, "none")}
	for _, path := range append([]string{"task?id=900001&payload=show", "bulk?do=purge", "payload?id=900001"}, allPages...) {
		answers[path] = s.get(t, path)
	}
	for _, f := range files {
		a := s.get(t, f[1])
		if a.status != 200 || !strings.Contains(a.header.Get("Cache-Control"), "immutable") || !regexp.MustCompile(`-[0-9a-f]{12}\.`).MatchString(f[1]) {
			t.Errorf("%s: got %d %v", f[1], a.status, a.header)
		}
		a.header.Set("Cache-Control", "no-store") // the others are
		answers[f[1]] = a
	}
	inline := regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:|<iframe|<base`)
	for path, a := range answers {
		csp := a.header.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: no %s in %q", path, want, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || strings.Contains(csp, "http") {
			t.Errorf("%s: %q", path, csp)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if found := inline.FindString(a.body); found != "" && strings.Contains(a.header.Get("Content-Type"), "html") {
			t.Errorf("%s has %q in it", path, found)
		}
	}
	if a := s.get(t, "payload?id=900001"); a.header.Get("Content-Disposition") != `attachment; filename="task-900001.json"` || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("a payload is sent as %v", a.header)
	}
}

// What the database says of a statement is for the log.
func TestProblemsShowNeitherSQLNorPayloadsNorTheConnectionString(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `ALTER TABLE outbox.dead_task RENAME TO gone_`+"secret_table")
	db.Do(t, `ALTER TABLE outbox.schedule RENAME COLUMN spec TO secret_column`)
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'secret_message %', NEW; END $$`)
	db.Do(t, `CREATE TRIGGER boom BEFORE INSERT ON outbox.audit FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
	bodies := ""
	for _, path := range []string{"dead", "task?id=900001", "schedules", "bulk?do=purge&error=x"} {
		a := s.get(t, path)
		a.has(t, 500, "There is no outbox, or its schema is older")
		bodies += a.body
	}
	a := s.post(t, "pause", url.Values{"name": {"X"}})
	a.has(t, 500, "PostgreSQL refused this.")
	bodies += a.body
	db.Close()
	a = s.get(t, "audit")
	a.has(t, 500, "The log of this server has the reason")
	bodies += a.body
	for _, part := range []string{"secret", "SELECT", "relation", "pq:", "SQLSTATE", "127.0.0.1", "postgres://", "closed"} {
		if strings.Contains(bodies, part) {
			t.Errorf("a page has %q in it", part)
		}
	}
	if !strings.Contains(s.log.String(), "request failed") {
		t.Error("the log has nothing")
	}
}

// A poll after the session has ended loads the page again, which says so.
func TestAPollThatIsDeniedLoadsThePageAgain(t *testing.T) {
	t.Parallel()
	may := dashboard.View
	s := serve(t, newDatabase(t), dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) { return may, "" }})
	s.get(t, "audit").has(t, 200)
	may = 0
	if a := s.get(t, "audit", "HX-Request", "true"); a.status != 403 || a.header.Get("HX-Refresh") != "true" {
		t.Errorf("got %d %v", a.status, a.header)
	}
}

func ExampleAccess() {
	fmt.Println(dashboard.Operate&dashboard.View == dashboard.View, dashboard.ViewPayloads|dashboard.Operate)
	// Output: true 7
}
