package dashboard_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

var values = regexp.MustCompile(` value="[^"]*"`)

func TestHostileTextsStayTexts(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Haunt(t, db.DB)
	s := serve(t, db, dashboard.Config{Authorize: func(*http.Request) (dashboard.Access, string) { return everything, `<script>window.pwned=1</script>` }})
	for _, path := range dashboardtest.HauntedPages(t, db.DB) {
		a := s.get(t, path)
		if a.status != 200 {
			t.Errorf("%s: got %d: %s", path, a.status, a.text())
			continue
		}
		for _, bad := range []string{"<script>", "<img", "<svg/", "<style", "<base", "<b ", "<form action=\"./bulk\" method=\"post\"><button", "<template", "\u202e", "\u2066", "\u200b", "\x1b", "\x01", "<meta http-equiv"} {
			body := values.ReplaceAllString(a.body, "") // a form sends names as they are
			if at := strings.Index(body, bad); at >= 0 {
				t.Errorf("%s has %q in it: …%q", path, bad, body[max(at-80, 0):min(at+80, len(body))])
			}
		}
		if len(a.body) > 1<<20 {
			t.Errorf("%s has %d bytes", path, len(a.body))
		}
		// The header of a redirect is a line.
		if strings.HasPrefix(path, "type?name=") {
			q, _ := url.ParseQuery(strings.TrimPrefix(path, "type?"))
			for _, action := range []string{"pause", "resume"} {
				a := s.post(t, action, q)
				if printable := strings.IndexFunc(q.Get("name"), func(r rune) bool { return !unicode.IsPrint(r) }) < 0; !printable { // PauseType knows no such type
					a.has(t, 400)
				} else if a.status != 303 || !strings.HasPrefix(a.header.Get("Location"), "./type?") {
					t.Errorf("%s %q: got %d %q", action, q.Get("name"), a.status, a.header.Get("Location"))
				}
			}
		}
	}
	if a := s.get(t, "payload?id=7000001"); len(a.body) != 2600012 {
		t.Errorf("the whole payload has %d bytes", len(a.body))
	}
	s.get(t, "task?id=7000001&payload=show").has(t, 200, "These are the first 64 kB of 2,600,012 bytes")
	s.get(t, "type?name="+url.QueryEscape(dashboardtest.Hostile[15])).has(t, 200, `evil\u202egnp.exe \u2066\u2067\u200b\ufeff\u061c`)
}
