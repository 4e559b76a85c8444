package dashboard_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// everyAction are forms with their pages.
var everyAction = []struct{ action, form, page string }{
	{"pause", "name=SEND_WELCOME", "type?name=SEND_WELCOME"},
	{"resume", "name=SYNC_CRM", "type?name=SYNC_CRM"},
	{"run-now", "id=130", "task?id=130"},
	{"cancel", "id=130", "cancel?id=130"},
	{"redrive", "one=900001&back=task", "task?id=900001"},
	{"redrive", "one=900001&type=SEND_WELCOME", "dead?type=SEND_WELCOME"},
	{"bulk", "do=redrive&until=9000000000000000", "bulk?do=redrive"},
	{"bulk", "do=purge&until=9000000000000000&type=SEND_WELCOME", "dead?type=SEND_WELCOME"},
	{"pause-schedule", "name=daily+report", "schedules"},
	{"hand-back", "relay=" + deadRelay, "relays"},
}

// explained fails unless the answer says what happened, that nothing was changed by an action, and
// has a way on: again, back, or to the overview.
func (a answer) explained(t testing.TB, what, back string, status int, title string) {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, "<h1>"+title+"</h1>") ||
		strings.Contains(a.text(), http.StatusText(status)) || !strings.Contains(a.body, `href="./">Overview</a></p>`) {
		t.Errorf("%s: got %d, want %d %s:\n%s", what, a.status, status, title, a.text())
		return
	}
	if action := back != ""; strings.Contains(a.text(), "Nothing was changed.") != action ||
		action && !strings.Contains(a.body, fmt.Sprintf(`id="back" href="./%s"`, strings.ReplaceAll(back, "&", "&amp;"))) ||
		strings.Contains(a.body, `id="again"`) == action {
		t.Errorf("%s: it does not say what is done, or leads nowhere:\n%s", what, a.body)
	}
}

// fails sends each page and each form of a dashboard on db, and wants a page about the error.
func (s *site) fails(t *testing.T, what string, pages []string, status int, title string) {
	t.Helper()
	for _, page := range pages {
		s.get(t, page).explained(t, what+", page "+page, "", status, title)
	}
	for _, c := range everyAction {
		s.post(t, c.action, c.form, "Referer", s.URL+"/outbox/"+c.page).
			explained(t, what+", "+c.action, c.page, status, title)
	}
}

func TestEachPageAndActionSaysWhatHappenedAndLeadsBack(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Local(t, nil)
			relaytest.Must(relaytest.Migrate(server.URL()))
			owner := relaytest.Direct(t, server.URL(), "postgres")
			dashboardtest.Fill(t, owner.DB)
			owner.Do(t, `CREATE ROLE viewer LOGIN PASSWORD 'v'; CREATE ROLE barred LOGIN PASSWORD 'b'`)
			relaytest.Must(schema.GrantRoles(t.Context(), owner.DB))
			owner.Do(t, `GRANT outbox_viewer TO viewer`)
			open := func(change func(u *url.URL)) *site {
				u, err := url.Parse(server.URL())
				relaytest.Must(err)
				change(u)
				return serve(t, relaytest.Direct(t, u.String(), driver), dashboard.Config{Authorize: as(everything)})
			}
			pages := append([]string{"cancel?id=130", "bulk?do=redrive"}, allPages...)

			open(func(u *url.URL) { u.User = url.UserPassword("postgres", "wrong"); u.Path = "/none" }).
				fails(t, "no such database", pages, 503, "PostgreSQL refuses the login")
			if driver == "pgx" { // lib/pq begins each transaction as one that writes
				open(func(u *url.URL) { u.RawQuery += "&default_transaction_read_only=on" }).
					fails(t, "read-only", nil, 503, "PostgreSQL takes no writes")
			}
			open(func(u *url.URL) { u.User = url.UserPassword("viewer", "v") }).
				fails(t, "a viewer", nil, 500, "The database role lacks a right")
			open(func(u *url.URL) { u.User = url.UserPassword("barred", "b") }).
				fails(t, "no right", pages, 500, "The database role lacks a right")
			broken := open(func(*url.URL) {})
			owner.Do(t, `ALTER SCHEMA outbox RENAME TO elsewhere`)
			broken.fails(t, "no schema", pages, 500, "The schema does not fit")
			owner.Do(t, `ALTER SCHEMA elsewhere RENAME TO outbox`)

			pool := relaytest.Direct(t, server.URL(), driver)
			serve(t, pool, dashboard.Config{Authorize: as(everything)}).get(t, "audit").has(t, 200)
			away := serve(t, pool, dashboard.Config{Authorize: as(everything)}) // a connection waits in its pool
			relaytest.Must(server.Stop("immediate"))
			away.fails(t, "away", pages, 503, "PostgreSQL is unavailable")
			for _, from := range []string{"", "https://elsewhere.example/dead", away.URL + "/outbox/pause", away.URL + "/", "%"} {
				a := away.post(t, "redrive", "one=900001", "Referer", from)
				if a.has(t, 503, "Overview"); strings.Contains(a.body, `id="back"`) {
					t.Errorf("from %q it leads back:\n%s", from, a.body)
				}
			}
		})
	}
}
