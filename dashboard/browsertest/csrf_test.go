package browsertest_test

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/gorilla/csrf"
	"github.com/justinas/nosurf"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// protections are those of apps, with the field that they want.
var protections = map[string]struct {
	around func(http.Handler) http.Handler
	field  func(*http.Request) (name, value string)
}{
	"gorilla/csrf": {
		func(next http.Handler) http.Handler {
			protected := csrf.Protect([]byte("a key of thirty-two bytes, always"[:32]), csrf.Secure(false), csrf.Path("/"))(next)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { protected.ServeHTTP(w, csrf.PlaintextHTTPRequest(r)) })
		},
		func(r *http.Request) (string, string) { return "gorilla.csrf.Token", csrf.Token(r) },
	},
	"nosurf": {
		func(next http.Handler) http.Handler {
			protected := nosurf.New(next)
			protected.SetIsTLSFunc(func(*http.Request) bool { return false })
			return protected
		},
		func(r *http.Request) (string, string) { return nosurf.FormFieldName, nosurf.Token(r) },
	},
	"net/http": {http.NewCrossOriginProtection().Handler, nil},
}

// A button is a plain form, and a bulk action one that a script sends.
func TestButtonsWorkInsideTheAppsProtectionAgainstCSRF(t *testing.T) {
	needs.CI(t)
	for name, p := range protections {
		t.Run(name, func(t *testing.T) {
			b, db := openDashboard(t, "ada@example.com", func(t testing.TB, db *sql.DB) {
				dashboardtest.Bury(t, db, "BULK", "attempts", "connection refused", 1, 3)
			})
			b.url = protect(t, db, p.around, p.field)
			b.open("type?name=BULK")
			b.do(chromedp.Click(chromedp.CSS(`form[action="./pause"] button`)))
			b.awaitText("The type is paused.")
			b.open("dead")
			b.do(chromedp.Click(chromedp.CSS("#bulk-redrive")))
			b.await(`document.querySelector("#confirm") !== null`, "the question")
			b.do(chromedp.Click(chromedp.CSS("#confirm")))
			b.awaitText("3 of 3 redriven")

			if p.field == nil {
				return
			}
			// Without the field the page of the app says why, also where a script has sent the form.
			dashboardtest.Bury(t, db.DB, "BULK", "attempts", "connection refused", 11, 3)
			b.console.expect(true) // of the status
			b.url = protect(t, db, p.around, nil)
			b.open("dead")
			b.do(chromedp.Click(chromedp.CSS("#bulk-redrive")))
			b.await(`document.querySelector("#confirm") !== null`, "the question")
			b.do(chromedp.Click(chromedp.CSS("#confirm")))
			b.await(`/Forbidden|Bad Request/.test(document.body.innerText)`, "the app's page")
			if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 3 {
				t.Errorf("%d dead letters are left, want 3", n)
			}
		})
	}
}

func protect(t testing.TB, db *relaytest.Database, around func(http.Handler) http.Handler, field func(*http.Request) (name, value string)) (url string) {
	t.Helper()
	d, err := dashboard.New(db.DB, dashboard.Config{BasePath: "/outbox", CSRFField: field, Authorize: func(*http.Request) (dashboard.Access, string) {
		return dashboard.Operate, "ada@example.com"
	}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", d)
	s := httptest.NewServer(around(mux))
	t.Cleanup(s.Close)
	return s.URL + "/outbox/"
}
