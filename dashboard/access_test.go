package dashboard_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// deadRelay is one that still has leases.
const deadRelay = "0197a1e0-1a00-7000-8000-00000000dead"

// changed is a number that is another one after any action.
func changed(t testing.TB, db *relaytest.Database) int {
	t.Helper()
	return db.Int(t, `SELECT count(*) FROM outbox.audit`)
}

func TestEachRoleMayDoWhatItIsForAndNothingElse(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	const secret = "hunter2-in-the-payload"
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	for _, table := range []string{"task", "dead_task"} {
		db.Do(t, `UPDATE outbox.`+table+` SET payload = jsonb_build_object('password', $1::text),
			headers = jsonb_build_object('h', $1::text)`, secret)
	}
	operators := regexp.MustCompile(
		`action="\./(pause|resume|cancel|run-now|redrive|hand-back|bulk|set-payload)|href="\./(bulk|cancel)`)
	named := func(a dashboard.Access, name string) func(*http.Request) dashboard.User {
		return func(*http.Request) dashboard.User { return dashboard.User{Name: name, Access: a} }
	}
	for name, r := range map[string]struct {
		config            dashboard.Config
		view              int // the status of pages
		operate, payloads bool
	}{
		"no authorizer": {dashboard.Config{}, 403, false, false},
		"nothing":       {dashboard.Config{Authorize: as(0)}, 403, false, false},
		"view":          {dashboard.Config{Authorize: as(dashboard.AccessView)}, 200, false, false},
		"payloads":      {dashboard.Config{Authorize: as(dashboard.AccessViewPayloads)}, 200, false, true},
		"operate":       {dashboard.Config{Authorize: as(dashboard.AccessOperate)}, 200, true, false},
		"read-only":     {dashboard.Config{Authorize: as(everything), ReadOnly: true}, 200, false, true},
		"no name":       {dashboard.Config{Authorize: named(everything, "")}, 200, false, false},
		"a name that is too long": {dashboard.Config{Authorize: named(everything, strings.Repeat("x", 257))}, 200,
			false, false},
		"bits of no meaning": {dashboard.Config{Authorize: as(0xf8)}, 403, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, db, r.config)
			for _, path := range append([]string{"task?id=1&payload=show", "task?id=900001&payload=show",
				"task?id=900001&payload=file"}, allPages...) {
				a := s.get(t, path)
				if a.has(t, r.view); r.config.Authorize == nil {
					a.has(t, 403, "Set dashboard.Config.Authorize to a function")
				}
				may := r.payloads && strings.Contains(path, "payload")
				if shows := strings.Contains(a.body, secret); shows != may {
					t.Errorf("GET %s: the payload is shown: %v, want %v", path, shows, may)
				}
				if !r.operate && operators.MatchString(a.body) {
					t.Errorf("GET %s has a form of an operator", path)
				}
			}
			want := map[bool]int{true: 200, false: 403}[r.operate]
			for _, path := range askPages {
				s.get(t, path).has(t, want)
			}
			before := changed(t, db)
			for _, c := range everyAction {
				// Else see TestEachActionIsDoneNotedAndLeadsBack and TestAPayloadIsChanged.
				if !r.operate || c.action == "set-payload" && !r.payloads {
					s.post(t, c.action, c.form).has(t, 403)
					a := s.post(t, c.action, c.form, "HX-Request", "true")
					if a.status != 403 && !regexp.MustCompile("read-only|Your role may not").MatchString(a.text()) {
						t.Errorf("POST %s: got %d: %s", c.action, a.status, a.text())
					}
				}
			}
			if after := changed(t, db); after != before || strings.Contains(s.log.String(), secret) {
				t.Errorf("%d actions were done, or the log has the payload", after-before)
			}
		})
	}
}

// Each look at a payload is in the log, and the page does not look again by itself.
func TestEachLookAtAPayloadIsLogged(t *testing.T) {
	t.Parallel()
	_, s := filled(t)
	const path = "task?id=900001&payload=show"
	for i, header := range [][]string{nil, {"HX-Request", "true"}, {"HX-Request", "true", "Outbox-Have", "x"}} {
		a := s.get(t, path, header...)
		a.has(t, 200, "nobody@exmaple.com")
		s.log.Want(t, i+1, `msg="outbox: dashboard: payload shown" actor=ada@example.com task=900001`)
		if strings.Contains(a.body, "hx-trigger") {
			t.Errorf("with %v the page asks for the payload again by itself", header)
		}
	}
	if a := s.get(t, "task?id=900001"); !strings.Contains(a.body, "hx-trigger") {
		t.Errorf("without the payload it does not update itself: %s", a.body)
	}
	s.log.Want(t, 3, "payload shown")
	a := s.get(t, "task?id=900001&payload=file", "HX-Request", "true")
	s.log.Want(t, 4, "payload shown")
	payload := s.db.Text(t, `SELECT payload::text FROM outbox.dead_task WHERE task_id = 900001`)
	if a.body != payload || a.header.Get("Content-Type") != "application/octet-stream" ||
		a.header.Get("Content-Disposition") != `attachment; filename="task-900001.json"` {
		t.Errorf("the file is %v %s, want %s", a.header, a.body, payload)
	}
}

// A page of another origin cannot have its visitor's browser act here.
func TestOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	before := changed(t, db)
	for _, c := range everyAction {
		for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site", "HX-Request", "true"},
			{"Origin", "https://evil.example"}, {"Origin", "null"}} {
			s.post(t, c.action, c.form, header...).has(t, 403)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH"} {
		a := send(t, s.Server, method, "/outbox/bulk", url.Values{})
		if a.status != 405 || a.header.Get("Allow") != "GET, HEAD, POST" {
			t.Errorf("%s: got %d %v", method, a.status, a.header["Allow"])
		}
	}
	s.get(t, "pause?name=SEND_WELCOME").has(t, 405)
	if after := changed(t, db); after != before {
		t.Errorf("%d actions were done", after-before)
	}
	own := []string{"Sec-Fetch-Site", "same-origin", "Origin", s.URL}
	s.post(t, "pause", "name=SEND_WELCOME", own...).has(t, 303)
}

func TestEachAnswerHasTheHeadersThatProtectIt(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	files := regexp.MustCompile(`(?:src|href)="\./(static-[^"]+-[0-9a-f]{12}\.[^"]+)"`).FindAllStringSubmatch(s.get(t,
		"").body, -1)
	if len(files) != 5 {
		t.Fatalf("the page has the files %v", files)
	}
	answers := map[string]answer{"denied": serve(t, db, dashboard.Config{}).get(t, ""), "none": s.get(t, "none"),
		"cross": s.post(t, "pause", "", "Origin", "https://elsewhere.example"), "redirect": s.post(t, "settings", "")}
	payload := []string{"task?id=900001&payload=show", "task?id=900001&payload=file"}
	for _, path := range slices.Concat(payload, askPages, allPages) {
		answers[path] = s.get(t, path)
	}
	for _, f := range files {
		a := s.get(t, f[1])
		if a.status != 200 || !strings.Contains(a.header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: got %d %v", f[1], a.status, a.header)
		}
		a.header.Set("Cache-Control", "no-store") // the others are
		answers[f[1]] = a
	}
	inline := regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:|<iframe|<base`)
	for path, a := range answers {
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; script-src 'self'; " +
				"style-src 'self'; " +
				"img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if got := a.header.Get("Cross-Origin-Opener-Policy"); got != "" {
			t.Errorf("%s: over plain http Cross-Origin-Opener-Policy is %q", path, got)
		}
		if found := inline.FindString(a.body); found != "" && strings.Contains(a.header.Get("Content-Type"), "html") {
			t.Errorf("%s has %q in it", path, found)
		}
	}
}

// Browsers say on each page that they ignore the header over plain http. They send Sec-Fetch-Site
// only where they do not, also through a proxy that ends TLS.
func TestPagesHaveAnOpenerPolicyWhereBrowsersFollowIt(t *testing.T) {
	t.Parallel()
	d, err := dashboard.New(newDatabase(t).DB, dashboard.Config{Authorize: as(dashboard.AccessView)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		url, site, want string
	}{
		"http": {"http://shop.example/", "", ""}, "https": {"https://shop.example/", "", "same-origin"},
		"https, through a proxy": {"http://shop.example/", "none", "same-origin"},
	} {
		r, w := httptest.NewRequest("GET", c.url, nil), httptest.NewRecorder()
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		d.ServeHTTP(w, r)
		if got := w.Header().Get("Cross-Origin-Opener-Policy"); w.Code != 200 || got != c.want {
			t.Errorf("%s: got %d, %q, want %q", name, w.Code, got, c.want)
		}
	}
}

func TestProblemsShowNeitherSQLNorPayloadsNorTheConnectionString(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	db.Do(t, `ALTER TABLE outbox.dead_task RENAME TO secret_table;
		ALTER TABLE outbox.schedule RENAME COLUMN spec TO secret_column;
		CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'secret_message %', NEW; END $$;
		CREATE TRIGGER boom BEFORE INSERT ON outbox.audit FOR EACH ROW EXECUTE FUNCTION outbox.boom()`)
	var answers []answer
	for _, path := range []string{"dead", "task?id=900001", "schedules", "bulk?do=purge&error=x"} {
		a := s.get(t, path)
		a.has(t, 500, "There is no outbox, or its schema is older")
		answers = append(answers, a)
	}
	a := s.post(t, "pause", "name=X")
	a.has(t, 500, "PostgreSQL refused this.")
	db.Close()
	b := s.get(t, "audit")
	b.has(t, 503, "The log of this server has the reason")
	private := regexp.MustCompile("secret|SELECT|relation|pq:|SQLSTATE|127.0.0.1|postgres://|closed")
	for _, a := range append(answers, a, b) {
		if found := private.FindString(a.body); found != "" {
			t.Errorf("a page has %q in it", found)
		}
	}
	if !strings.Contains(s.log.String(), "request failed") {
		t.Error("the log has nothing")
	}
}

// A poll after the session has ended loads the page again, which says so.
func TestAPollThatIsDeniedLoadsThePageAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, newDatabase(t), dashboard.Config{Authorize: as(0)})
	if a := s.get(t, "audit", "HX-Request", "true"); a.status != 403 || a.header.Get("HX-Refresh") != "true" {
		t.Errorf("got %d %v", a.status, a.header)
	}
}

func ExampleAccess() {
	fmt.Println(dashboard.AccessOperate&dashboard.AccessView == dashboard.AccessView, dashboard.AccessViewPayloads|dashboard.AccessOperate)
	// Output: true 7
}

// A dashboard inside an app's protection against CSRF: each page has a token that is masked anew.
func TestEachFormHasTheFieldOfTheApp(t *testing.T) {
	t.Parallel()
	db, _ := filled(t)
	var asked atomic.Int64
	s := serve(t, db, dashboard.Config{Authorize: as(everything),
		CSRFField: func(r *http.Request) (name, value string) {
			return `token "x"`, fmt.Sprint("<masked> ", asked.Add(1))
		}})
	form := regexp.MustCompile(`(?s)<form [^>]*method="post"[^>]*>(.{0,100})`)
	field := regexp.MustCompile(`^<input type="hidden" name="token &#34;x&#34;" value="&lt;masked&gt; \d+">`)
	seen := 0
	others := []string{"task?id=900001&payload=show", "none"}
	for _, path := range slices.Concat(others, askPages, allPages) {
		before := asked.Load()
		for _, m := range form.FindAllStringSubmatch(s.get(t, path).body, -1) {
			if seen++; !field.MatchString(m[1]) {
				t.Errorf("%s has a form without the field: %s", path, html.UnescapeString(m[0]))
			}
		}
		if n := asked.Load() - before; n != 1 {
			t.Errorf("%s: the app was asked %d times for its token, want 1", path, n)
		}
	}
	if seen < 40 {
		t.Errorf("only %d forms were seen", seen)
	}
	refused := s.post(t, "set-payload", "id=900001&payload={")
	if m := form.FindAllStringSubmatch(refused.body, -1); len(m) != 2 || !field.MatchString(m[1][1]) {
		t.Errorf("the form of a payload that was refused lacks the field: %s", refused.body)
	}
	// A token that is masked anew is no news.
	have := regexp.MustCompile(`"Outbox-Have":"([0-9a-f]+)"`).FindStringSubmatch(html.UnescapeString(s.get(t,
		"schedules").body))
	s.get(t, "schedules", "HX-Request", "true", "Outbox-Have", have[1]).has(t, 204)

	s = serve(t, db, dashboard.Config{Authorize: as(everything),
		CSRFField: func(*http.Request) (name, value string) { return "", "x" }})
	if body := s.get(t, "type?name=SEND_WELCOME").body; strings.Contains(body, `value="x"`) {
		t.Errorf("there is a field without a name: %s", body)
	}
}

// A proxy that rewrites Host, and a browser that over plain http says its origin only.
func TestTrustedOriginsMayActBehindAProxyThatRewritesHost(t *testing.T) {
	t.Parallel()
	s := serve(t, newDatabase(t), dashboard.Config{Authorize: as(everything),
		TrustedOrigins: []string{"http://admin.example.com:8080", "https://admin.example.com"}})
	for _, origin := range []string{"http://admin.example.com:8080", "https://admin.example.com", s.URL} {
		s.post(t, "pause", "name=A", "Origin", origin).has(t, 303)
	}
	for _, origin := range []string{"http://admin.example.com", "https://admin.example.com.evil.example", "null"} {
		s.post(t, "pause", "name=A", "Origin", origin).has(t, 403, "dashboard.Config.TrustedOrigins")
	}
}

func TestAnOriginThatNoBrowserSendsIsRefused(t *testing.T) {
	t.Parallel()
	for origin, says := range map[string]string{
		"admin.example.com": "write it like https://admin.example.com", "": "write it like", "null": "write it like",
		"https://admin.example.com/": "nothing behind the host", "https://u@admin.example.com": "write it like",
		"ftp://admin.example.com": "write it like", "https://a b": "write it like",
		"https://admin.example.com:443": "leave the port out", "http://admin.example.com:80": "leave the port out",
		"https://Admin.example.com": "in lower case", "https://*.example.com": "without *",
		"https://bücher.example": "in ASCII",
	} {
		_, err := dashboard.New(nil, dashboard.Config{TrustedOrigins: []string{"https://fine.example", origin}})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Config.TrustedOrigins: %q: ", origin)) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%q: the error is %v, want one that says %q", origin, err, says)
		}
	}
}

// hostile are texts that try to become script, markup, a template, or another text than they are.
var hostile = []string{
	"evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c",
	`</script><script>window.pwned=1</script>`,
	`"><img src=x onerror="window.pwned=1">`,
	`'><svg/onload=window.pwned=1>`,
	`" autofocus onfocus="window.pwned=1" x="`,
	`' onmouseover='window.pwned=1`,
	`{{.Secrets}} {{printf "%s" .}} ${window.pwned=1} <%= 1 %>`,
	`</title></textarea></select></pre><script>window.pwned=1</script>`,
	`<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css>`,
	`<div hx-get="./settings" hx-trigger="load" hx-on:load="window.pwned=1" data-hx-get="/x">`,
	`<meta http-equiv="refresh" content="0;url=//evil.example"><base href="//evil.example/">`,
	`<form action="./bulk" method="post"><button autofocus>`,
	`<template><td id="live" hx-swap-oob="true">x</td></template>`,
	"\U000e0041\ufffd\uffff \U0001f4a9\u0301\u0301\u0301\u0301 a\u00ad\u2028b\u2029c",
	`&lt;script&gt; &amp;amp; &#x3c;script&#x3e; %3Cscript%3E + %2B %00 \u003cscript\u003e`,
	`../../etc/passwd?x=1&y=2#frag;a=b&ok=paused&n=5&name=OTHER`,
}

// haunt writes the texts into all that pages show, and returns the pages that show them.
func haunt(t testing.TB, db *relaytest.Database) (pages []string) {
	t.Helper()
	for i, h := range hostile {
		payload, err := json.Marshal(map[string]any{h: []any{h, map[string]string{"x": h}}})
		if err != nil {
			t.Fatal(err)
		}
		long := h + "\x01\x1b[31m\x7f\r\n" + strings.Repeat(h, 3)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, unique_key, last_error, attempted_at, attempt)
			VALUES ($1, $2, jsonb_build_object('h', $1::text), $1, $3, now(), 1)`, h, string(payload), long)
		db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts,
			reason, task_type, payload, headers, last_error)
			VALUES ($1, now(), now(), now(), 0, 10, 10, 'attempts', $2, $3, jsonb_build_object('h', $2::text), $4)`,
			5_000_000+i, h, string(payload), long)
		db.Do(t, `INSERT INTO outbox.schedule (name, next_at, task_type, payload, spec, timing, definition)
			VALUES ($1, now(), $1, '{}', $1, 'x', 'x')`, h)
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
			VALUES (gen_random_uuid(), $1, 1, now() + (($2 % 2) * 2 - 1) * interval '1 hour', ARRAY[$1])`, h, i)
		db.Do(t, `INSERT INTO outbox.audit (actor, tool, action, target) VALUES ($1, 'x', left($1, 60), $1)`, h)
		q := url.QueryEscape(h)
		pages = append(pages, fmt.Sprintf("task?id=%d&payload=show", i+1),
			fmt.Sprintf("task?id=%d&payload=show", 5_000_000+i),
			"type?name="+q, "type?state=dead&name="+q, "dead?type="+q+"&error="+q,
			"bulk?do=purge&type="+q+"&error="+q, "bulk?do=retype&type="+q+"&ordered="+q,
			"tasks?type="+q+"&state=retrying", "tasks?error="+q+"&unique="+q)
	}
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), relay.relay_id
		FROM outbox.task JOIN outbox.relay ON task_types = ARRAY[task_type]`)
	// A huge payload, and a deep one.
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE VALUES
		(7000001, 'HUGE', jsonb_build_object('text', repeat('<b onclick=window.pwned=1>', 100000))),
		(7000002, 'HUGE', (repeat('[', 900) || '"<script>window.pwned=1</script>"' || repeat(']', 900))::jsonb)`)
	return append(pages, "", "dead", "schedules", "relays", "audit", "cancel?id=1", "task?id=7000001&payload=show",
		"task?id=7000002&payload=show")
}

func TestHostileTextsStayTexts(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	pages := haunt(t, db)
	s := serve(t, db, dashboard.Config{Authorize: func(*http.Request) dashboard.User {
		return dashboard.User{Name: hostile[1], Access: everything}
	}})
	values := regexp.MustCompile(` value="[^"]*"`)
	bad := regexp.MustCompile(`<script>|<img|<svg/|<style|<base|<b |<button autofocus|<template|<meta http-equiv|` +
		"\u202e|\u2066|\u200b|\x1b|\x01")
	for _, path := range pages {
		a := s.get(t, path)
		a.has(t, 200)
		body := values.ReplaceAllString(a.body, "") // a form sends names as they are
		if at := bad.FindStringIndex(body); at != nil {
			t.Errorf("%s has in it: …%q", path, body[max(at[0]-80, 0):min(at[0]+80, len(body))])
		}
		if len(a.body) > 1<<20 {
			t.Errorf("%s has %d bytes", path, len(a.body))
		}
		if text := textarea(a); strings.HasPrefix(path, "task?") { // also as it was sent, if it is refused
			a := s.post(t, "set-payload", url.Values{"id": {"1"}, "payload": {text + "}"}}.Encode())
			if a.has(t, 400, "not JSON"); bad.MatchString(a.body) {
				t.Errorf("after a change of the payload of %s there is %q", path, bad.FindString(a.body))
			}
		}
		if q, ok := strings.CutPrefix(path, "type?name="); ok { // the header of a redirect is a line
			name, _ := url.QueryUnescape(q)
			a := s.post(t, "pause", "name="+q)
			if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) { // PauseType knows no such type
				a.has(t, 400)
			} else if a.status != 303 || !strings.HasPrefix(a.header.Get("Location"), "./type?") {
				t.Errorf("pause %q: got %d %q", name, a.status, a.header.Get("Location"))
			}
		}
	}
	s.get(t, "task?id=7000001&payload=show").has(t, 200, "These are the first 64 kB of 2,600,012 bytes")
	if n := len(s.get(t, "task?id=7000001&payload=file").body); n != 2600012 {
		t.Errorf("the file has %d bytes", n)
	}
	s.get(t, "type?name="+url.QueryEscape(hostile[0])).has(t, 200, `evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c`)
}
