package dashboard_test

import (
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
)

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
	for _, path := range append([]string{"bulk?do=redrive", "bulk?do=purge", "cancel?id=1", "none"}, allPages...) {
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
	if seen < 25 {
		t.Errorf("only %d forms were seen", seen)
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
