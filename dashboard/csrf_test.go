package dashboard_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
)

// guarded is a dashboard inside an app's protection against CSRF, as gorilla/csrf and nosurf have it:
// each unsafe request has a field with a token that is masked anew for each page.
func guarded(t *testing.T, field func(*http.Request) (name, value string)) *site {
	t.Helper()
	_, s := filled(t)
	d, err := dashboard.New(s.db.DB, dashboard.Config{BasePath: "/outbox", Authorize: as(everything), CSRFField: field})
	if err != nil {
		t.Fatal(err)
	}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && !strings.HasPrefix(r.PostFormValue(`token "x"`), "<masked> ") {
			http.Error(w, "the app's token is missing", http.StatusBadRequest)
			return
		}
		d.ServeHTTP(w, r)
	})
	return s
}

func TestEachFormHasTheFieldOfTheApp(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := guarded(t, func(r *http.Request) (name, value string) { return `token "x"`, fmt.Sprint("<masked> ", asked.Add(1)) })
	form := regexp.MustCompile(`(?s)<form [^>]*method="post"[^>]*>(.{0,100})`)
	field := regexp.MustCompile(`^<input type="hidden" name="token &#34;x&#34;" value="&lt;masked&gt; \d+">`)
	seen := 0
	id := fmt.Sprint(s.db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = 'ready'`))
	for _, path := range append([]string{"bulk?do=redrive", "bulk?do=purge", "cancel?id=" + id, "none"}, allPages...) {
		before := asked.Load()
		a := s.get(t, path)
		for _, m := range form.FindAllStringSubmatch(a.body, -1) {
			if seen++; !field.MatchString(m[1]) {
				t.Errorf("%s has a form without the field: %s", path, html.UnescapeString(m[0]))
			}
		}
		if n := asked.Load() - before; n != 1 {
			t.Errorf("%s: the app was asked %d times for its token, want 1", path, n)
		}
	}
	if seen < 25 {
		t.Errorf("only %d forms were seen", seen)
	}

	// A form is taken with it; a bulk action goes on with its script; and a token that is masked
	// anew is no news.
	with := url.Values{"name": {"SEND_WELCOME"}, `token "x"`: {"<masked> 1"}}
	if a := s.post(t, "pause", with); a.status != http.StatusSeeOther {
		t.Errorf("with the token: %d %s", a.status, a.text())
	}
	s.post(t, "pause", url.Values{"name": {"SEND_WELCOME"}}).has(t, 400, "the app's token is missing")
	bulk := url.Values{"do": {"redrive"}, "until": {"1"}, `token "x"`: {"<masked> 1"}}
	s.post(t, "bulk", bulk, "HX-Request", "true").has(t, 200, "Done.")
	have := regexp.MustCompile(`"Outbox-Have":"([0-9a-f]+)"`).FindStringSubmatch(html.UnescapeString(s.get(t, "schedules").body))
	if a := s.get(t, "schedules", "HX-Request", "true", "Outbox-Have", have[1]); a.status != http.StatusNoContent {
		t.Errorf("a poll of a page that has not changed: %d", a.status)
	}
}

func TestWithoutANameOfTheAppsFieldThereIsNone(t *testing.T) {
	t.Parallel()
	s := guarded(t, func(*http.Request) (name, value string) { return "", "x" })
	if body := s.get(t, "type?name=SEND_WELCOME").body; strings.Contains(body, `value="x"`) {
		t.Errorf("there is a field without a name: %s", body)
	}
}

// A proxy that rewrites Host, and a browser that over plain http says its origin only.
func TestTrustedOriginsMayActBehindAProxyThatRewritesHost(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	d, err := dashboard.New(db.DB, dashboard.Config{Authorize: as(everything), TrustedOrigins: []string{"http://admin.example.com:8080", "https://admin.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(d)
	defer s.Close()
	for origin, status := range map[string]int{
		"http://admin.example.com:8080": 303, "https://admin.example.com": 303, s.URL: 303,
		"http://admin.example.com": 403, "https://evil.example": 403, "https://admin.example.com.evil.example": 403, "null": 403,
	} {
		a := send(t, s, "POST", "/pause", url.Values{"name": {"A"}}, "Origin", origin)
		if a.status != status || status == 403 && !strings.Contains(a.body, "dashboard.Config.TrustedOrigins") {
			t.Errorf("from %s: %d, want %d: %s", origin, a.status, status, a.body)
		}
	}
	for origin, says := range map[string]string{
		"admin.example.com": "write it like https://admin.example.com", "https://": "write it like", "": "write it like", "null": "write it like",
		"https://admin.example.com/": "nothing behind the host", "https://u@admin.example.com": "write it like", "ftp://admin.example.com": "write it like",
		"https://admin.example.com:443": "leave the port out", "http://admin.example.com:80": "leave the port out",
		"https://Admin.example.com": "in lower case", "https://*.example.com": "without *", "https://bücher.example": "in ASCII", "https://a b": "write it like",
	} {
		_, err := dashboard.New(db.DB, dashboard.Config{TrustedOrigins: []string{"https://fine.example", origin}})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("dashboard: Config.TrustedOrigins: %q: ", origin)) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: the error is %v, want one that says %q", origin, err, says)
		}
	}
}
