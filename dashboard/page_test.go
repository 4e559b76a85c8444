package dashboard_test

import (
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/schema"
)

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// text is the body without tags.
func (a answer) text() string {
	s := regexp.MustCompile(`(?s)<[^>]*>`).ReplaceAllString(a.body, " ")
	return regexp.MustCompile(`\s+`).ReplaceAllString(html.UnescapeString(s), " ")
}

var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// send sends a request to a server.
func send(t testing.TB, s *httptest.Server, method, path string, form url.Values, header ...string) answer {
	t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := noRedirects.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

func (s *site) send(t testing.TB, method, path string, form url.Values, header ...string) answer {
	t.Helper()
	return send(t, s.Server, method, "/outbox/"+path, form, header...)
}

func (s *site) get(t testing.TB, path string, header ...string) answer {
	t.Helper()
	return s.send(t, "GET", path, nil, header...)
}

func (s *site) post(t testing.TB, path string, form url.Values, header ...string) answer {
	t.Helper()
	return s.send(t, "POST", path, form, header...)
}

func (a answer) has(t testing.TB, status int, wants ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("the status is %d, want %d; %s", a.status, status, a.text())
		return
	}
	for _, want := range wants {
		if !strings.Contains(a.text(), want) {
			t.Errorf("%q is not on the page:\n%s", want, a.text())
		}
	}
}

var allPages = []string{"", "?range=24h", "type?name=SEND_WELCOME", "type?name=SEND_WELCOME&state=scheduled", "type?name=NEVER", "task?id=900001", "dead", "dead?type=SEND_WELCOME&reason=attempts&error=user&older=1h",
	"schedules", "relays", "audit"}

// The consumer of an event knows the task by its key.
func TestATaskIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	key := db.Text(t, `SELECT concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3), '-8000-', lpad(to_hex(900001), 12, '0')) FROM outbox.identity`)
	if a := s.get(t, "task?id="+key); a.status != 303 || a.header.Get("Location") != "./task?id=900001" {
		t.Errorf("got %d to %q", a.status, a.header.Get("Location"))
	}
	s.get(t, "task?id=900001").has(t, 200, "Key "+key)
	s.get(t, "task?id=11111111-1111-8111-8000-0000000dbba1").has(t, 404, "There is no such task")
	s.get(t, "task?id=1-1").has(t, 400)
}

func TestPagesShowWhatIsThere(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	scheduled := db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE task_type = 'SEND_WELCOME' AND state = 'scheduled'`)
	leased := db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = 'leased'`)
	for path, wants := range map[string][]string{
		"":                                      {"Ready 1,975", "Scheduled 45", "Leased 16", "Waiting 60", "Dead 53", "SYNC_CRM paused", "LEDGER no relay", "web-1.fra", "RESIZE_IMAGE × 7", "GRANT_CREDIT × 5", "web-0.fra pid 3999 dead"},
		"type?name=SEND_WELCOME":                {"Pause this type", "ready 120", "dead 40", "Relays with a handler 2"},
		"type?name=SYNC_CRM":                    {"SYNC_CRM paused", "Resume this type", "100 in 1 min", "At once in all relays 4"},
		"type?name=LEDGER":                      {"Relays with a handler none", "waiting 60"},
		"type?name=SEND_WELCOME&state=dead":     {"900001", "recipient address rejected"},
		"type?name=RESIZE_IMAGE&state=finished": {"handlers.Keep keeps them"},
		"type?name=NEVER":                       {"No task of this type was ever enqueued"},
		"task?id=899741":                        {"attempt 6 failed after 5.1s, dead letter: all attempts were used", "redriven by grace@example.com", "attempt 1 finished", "Kept until"},
		"task?id=900001":                        {"Task 900001 dead", "all attempts were used", "10 of 10", "Redrive", "recipient address rejected", "enqueued", "Show the payload"},
		fmt.Sprint("task?id=", scheduled):       {"scheduled", "Run now", "Cancel", "421 4.3.2", "attempt 3 failed", "attempt 2 lost: its process died", "Last error attempt 3"},
		fmt.Sprint("task?id=", leased):          {"leased", "Cancel", "running, on relay 0197a1f2-7c11"},
		"dead":                                  {"53 dead letters", "smtp: # #.#.# <nobody@exmaple.com>: recipient address rejected: user unknown SEND_WELCOME 37", "resize: decode upload/#/#/IMG_#.heic: image: unknown format RESIZE_IMAGE 11", "900101", "welcome: user 8123 has no address", "Redrive all…"},
		"dead?reason=handler":                   {"3 of 53 dead letters", "900103", "Redrive all that match"},
		"dead?error=no+such+text":               {"No dead letter matches."},
		"schedules":                             {"daily report", "0 8 * * *", "sync crm paused"},
		"relays":                                {"web-2.fra", "Hand back its tasks", "Workers 20", "Connections 22"},
		"audit":                                 {"grace@example.com", "purge", "1,204"},
	} {
		t.Run(path, func(t *testing.T) { s.get(t, path).has(t, 200, wants...) })
	}
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ('grace@example.com', 'test', 'mark', 'task 900001')`)
	s.get(t, "task?id=900001").has(t, 200, "Audit When Actor Action Tool", "grace@example.com mark test")
	if text := s.get(t, "").text(); !regexp.MustCompile(`Finished [0-9,]+ [0-9.,]+/min Failed runs [0-9,]+ [0-9.,]+/min`).MatchString(text) {
		t.Errorf("the overview has no rates: %s", text)
	}
	for path, status := range map[string]int{"none": 404, "task?id=77777": 404, "task?id=x": 400, "task": 400, "type": 404, "type?name=X&state=lost": 400, "dead?older=1y": 400, "dead?reason=bad": 400, "dead?after=x": 400,
		"audit?after=x": 400, "bulk": 400, "pause": 405, "type?name=X&after=%00": 400, "dead?type=%ff": 400, "payload?id=77777": 404, "type?name=%00": 400} {
		if a := s.get(t, path); a.status != status {
			t.Errorf("GET %s: got %d, want %d: %s", path, a.status, status, a.text())
		}
	}
}

func TestListsGoOnPageByPage(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) SELECT 'x', 'test', 'act', 'target ' || n FROM generate_series(1, 120) n`)
	ids := regexp.MustCompile(`id="task-(\d+)"|target (\d+)`)
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	for path, want := range map[string]int{"type?name=SEND_WELCOME&state=ready": 120, "type?name=SYNC_CRM": 1843, "dead": 53, "audit": 120, "type?name=LEDGER&state=waiting": 60} {
		seen := map[string]bool{}
		pages := 0
		for at := path; at != ""; pages++ {
			a := s.get(t, at)
			a.has(t, 200)
			for _, m := range ids.FindAllStringSubmatch(a.body, -1) {
				if seen[m[0]] {
					t.Fatalf("%s: %s is on two pages", path, m[0])
				}
				seen[m[0]] = true
			}
			at = ""
			if m := next.FindStringSubmatch(a.body); m != nil {
				at = html.UnescapeString(m[1])
			}
		}
		if len(seen) != want || pages != (want+49)/50 && pages != (want+3+49)/50 {
			t.Errorf("%s: %d rows on %d pages, want %d rows", path, len(seen), pages, want)
		}
	}
}

// The script asks for the part of a page that changes, and gets nothing while it is as it was.
// A dead relay is an alarm while tasks of it are not taken over yet.
func TestADeadRelayThatNeedsNothingIsQuietAndAnAuditEntryLeadsToItsTask(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('00000000-0000-4000-8000-000000000009', 'quiet.fra', 7, now() - interval '9 minutes', '{}')`)
	for _, path := range []string{"", "relays"} {
		body := s.get(t, path).body
		quiet, alarm := strings.Count(body, `<span class="badge">dead</span>`), strings.Count(body, `<span class="badge bad">dead</span>`)
		if quiet != 1 || alarm != 1 {
			t.Errorf("%q: %d dead relays are quiet and %d are not, want one each", path, quiet, alarm)
		}
	}
	if body := s.get(t, "audit").body; !strings.Contains(body, `<a href="./task?id=899741">`) {
		t.Error("an audit entry does not lead to its task")
	}
}

// A relay that was killed is not alive on any page, though its leases last for some seconds.
func TestARelayWithoutAHeartbeatIsMissing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := serve(t, db, dashboard.Config{Authorize: as(dashboard.View)})
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES (gen_random_uuid(), 'killed.fra', 7, clock_timestamp() + interval '3900 milliseconds', '{}')`)
	page := s.get(t, "relays")
	missing := regexp.MustCompile(`killed.fra pid 7 missing .* State missing: last seen \d+ s ago`)
	dead := regexp.MustCompile(`killed.fra pid 7 dead .* State dead`) // on a machine that was busy for so long
	if text := page.text(); !missing.MatchString(text) && !dead.MatchString(text) {
		t.Errorf("the page does not show it as missing: %s", text)
	}
	if text := s.get(t, "").text(); !strings.Contains(text, "killed.fra pid 7 missing") && !strings.Contains(text, "killed.fra pid 7 dead") {
		t.Errorf("the overview does not show it as missing: %s", text)
	}
}

func TestPollsGetWhatHasChanged(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	have := regexp.MustCompile(`"Outbox-Have":"([0-9a-f]+)"`)
	headers := func(a answer) []string {
		m := have.FindStringSubmatch(html.UnescapeString(a.body))
		if m == nil {
			t.Fatalf("the page does not poll: %s", a.body)
		}
		return []string{"HX-Request", "true", "Outbox-Have", m[1]}
	}
	page := s.get(t, "audit")
	part := s.get(t, "audit", headers(page)...)
	if part.status != 204 {
		part.has(t, 204)
	}
	db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ('eve', 'test', 'look', 'around')`)
	part = s.get(t, "audit", headers(page)...)
	if part.has(t, 200, "eve"); strings.Contains(part.body, "<html") || !strings.HasPrefix(part.body, `<div id="live"`) {
		t.Errorf("a poll gets a whole page: %s", part.body)
	}

	// What reads all there is to find something is done when asked, and a list with buttons on its
	// rows stays.
	viewer := serve(t, db, dashboard.Config{Authorize: as(dashboard.View)})
	for path, polls := range map[string]bool{"": true, "dead": true, "dead?type=SEND_WELCOME&older=1h": true, "dead?error=user": false, "dead?reason=handler": false, "dead?type=SEND_WELCOME&error=x": false} {
		if got := strings.Contains(viewer.get(t, path).body, "hx-trigger"); got != polls {
			t.Errorf("%s: it polls: %v, want %v", path, got, polls)
		}
	}
	if a := s.get(t, "dead"); strings.Contains(a.body, "hx-trigger") || !strings.Contains(a.body, `id="again" href="./dead"`) {
		t.Errorf("a list with buttons polls: %s", a.body)
	}

	off := s.get(t, "", "Cookie", "outbox_updates=off")
	if off.has(t, 200); strings.Contains(off.body, "hx-trigger") {
		t.Error("a page polls though its viewer has stopped that")
	}
}

func TestSettingsAreACookieAndLeadBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := serve(t, db, dashboard.Config{Authorize: as(dashboard.View), ReadOnly: true})
	for back, want := range map[string]string{"./dead?type=A%26B": "./dead?type=A%26B", "./dead?type=A&ok=paused&n=1": "./dead?type=A", "": "./", "https://example.com/": "./", "//example.com": "./", "./pause": "./", "./payload?id=1": "./", "./../x": "./"} {
		a := s.post(t, "settings", url.Values{"theme": {"dark"}, "back": {back}})
		if a.status != 303 || a.header.Get("Location") != want {
			t.Errorf("back %q: got %d %q, want %q", back, a.status, a.header.Get("Location"), want)
		}
		if c := a.header.Get("Set-Cookie"); !strings.HasPrefix(c, "outbox_theme=dark;") || !strings.Contains(c, "HttpOnly") || !strings.Contains(c, "SameSite=Lax") {
			t.Errorf("the cookie is %q", c)
		}
	}
	s.post(t, "settings", url.Values{"theme": {`"><script>`}}).has(t, 400)
	if a := s.get(t, "", "Cookie", `outbox_theme=dark`); !strings.Contains(a.body, `data-theme="dark"`) {
		t.Error("the theme of the cookie is not that of the page")
	}
	if a := s.get(t, "", "Cookie", `outbox_theme="x"`); !strings.Contains(a.body, `data-theme="auto"`) {
		t.Error("another theme is taken from the cookie")
	}
}

func TestADashboardOfAnotherSchemaAndPath(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, schema.Schema("shop_outbox"))
	d, err := dashboard.New(db.DB, dashboard.Config{Schema: "shop_outbox", Authorize: as(everything), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	db.Do(t, `INSERT INTO shop_outbox.task (task_type) SELECT 'SHIP' FROM generate_series(1, 7)`)
	mux := http.NewServeMux()
	mux.Handle("/admin/queue/", http.StripPrefix("/admin/queue", d))
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{"/admin/queue/": "SHIP", "/admin/queue/type?name=SHIP": "ready 7", "/admin/queue/relays": "no task runs", "/admin/queue/dead": "no dead letters", "/admin/queue/schedules": "no schedules", "/admin/queue/audit": "Nothing was done"} {
		send(t, server, "GET", path, nil).has(t, 200, want)
	}
	a := send(t, server, "POST", "/admin/queue/pause", url.Values{"name": {"SHIP"}})
	if a.status != 303 || a.header.Get("Location") != "./type?n=1&name=SHIP&ok=paused" || db.Int(t, `SELECT count(*) FROM shop_outbox.task_type WHERE paused`) != 1 {
		t.Errorf("pause: got %d %q", a.status, a.header.Get("Location"))
	}
	if n := db.Int(t, `SELECT count(*) FROM shop_outbox.audit`); n != 1 {
		t.Errorf("the audit log has %d entries, want 1", n)
	}
	// A handler that is mounted without the slash leads to it.
	bare, err := dashboard.New(db.DB, dashboard.Config{Schema: "shop_outbox", BasePath: "/q/", Authorize: as(everything), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/", bare)
	if a := send(t, server, "GET", "/q", nil); a.status != 301 || a.header.Get("Location") != "./q/" {
		t.Errorf("/q: got %d %q", a.status, a.header.Get("Location"))
	}
	send(t, server, "GET", "/elsewhere", nil).has(t, 404)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	_, err := dashboard.New(nil, dashboard.Config{Schema: "Bad-Name", BasePath: "outbox", StatementTimeout: -1})
	for _, want := range []string{"*sql.DB is nil", "Options.Schema", "Config.BasePath", "Config.StatementTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
	if _, err := dashboard.New(db.DB, dashboard.Config{BasePath: "/a/../b"}); err == nil {
		t.Error("a base path with .. is taken")
	}
}
