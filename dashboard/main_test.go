package dashboard_test

import (
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// newDatabase is a migrated database of the test's own.
func newDatabase(t testing.TB, opts ...schema.Option) *relaytest.Database {
	t.Helper()
	return relaytest.Open(t, relaytest.Migrated(t, opts...))
}

// site is a dashboard that is served, with its database and its log.
type site struct {
	*httptest.Server
	db  *relaytest.Database
	log *relaytest.Records
}

// as lets everybody in with the access.
func as(a dashboard.Access) func(*http.Request) dashboard.User {
	return func(*http.Request) dashboard.User { return dashboard.User{Name: "ada@example.com", Access: a} }
}

const everything = dashboard.AccessViewPayloads | dashboard.AccessOperate

// filled is an outbox as an app may have it, and a dashboard of it in which everything is allowed.
func filled(t testing.TB) (*relaytest.Database, *site) {
	t.Helper()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	return db, serve(t, db, dashboard.Config{Authorize: as(everything)})
}

// serve mounts a dashboard at /outbox/ of a server of the test's own.
func serve(t testing.TB, db *relaytest.Database, c dashboard.Config) *site {
	t.Helper()
	s := &site{db: db, log: &relaytest.Records{}}
	c.BasePath, c.Logger = "/outbox", slog.New(slog.NewTextHandler(s.log, nil))
	d, err := dashboard.New(db.DB, c)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", d)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
	return s
}

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

var noRedirects = &http.Client{CheckRedirect: func(*http.Request,
	[]*http.Request) error {
	return http.ErrUseLastResponse
}}

// send sends a request to a server, with the values as a form unless they are nil.
func send(t testing.TB, s *httptest.Server, method, path string, form url.Values, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(form.Encode()))
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

func (s *site) get(t testing.TB, path string, header ...string) answer {
	t.Helper()
	return send(t, s.Server, "GET", "/outbox/"+path, nil, header...)
}

// post sends a form, written as a query.
func (s *site) post(t testing.TB, path, form string, header ...string) answer {
	t.Helper()
	q, err := url.ParseQuery(form)
	if err != nil {
		t.Fatal(err)
	}
	return send(t, s.Server, "POST", "/outbox/"+path, q, header...)
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

// leads fails unless the answer is a redirect to the address.
func (a answer) leads(t testing.TB, to string) {
	t.Helper()
	if got := a.header.Get("Location"); a.status != 303 || got != to {
		t.Errorf("got %d to %q, want 303 to %q; %s", a.status, got, to, a.text())
	}
}

var allPages = []string{"", "?range=24h", "type?name=SEND_WELCOME", "type?name=SEND_WELCOME&state=scheduled",
	"type?name=SYNC_CRM", "type?name=SEND_WELCOME&state=retrying",
	"type?name=NEVER",
	"task?id=900001", "dead", "dead?type=SEND_WELCOME&reason=attempts&error=user&older=1h", "tasks",
	"tasks?type=SEND_WELCOME&state=retrying", "tasks?state=dead&error=user&older=1h", "schedules",
	"relays", "audit"}

// askPages are the pages that ask before an action.
var askPages = []string{"cancel?id=1", "bulk?do=redrive", "bulk?do=purge", "bulk?do=cancel",
	"bulk?do=run_now&type=SEND_WELCOME&state=retrying", "bulk?do=reschedule&error=421",
	"bulk?do=set_priority", "bulk?do=retype&type=SYNC_CRM"}

// textarea is the text of the page's field for a payload; "" if there is none.
func textarea(a answer) string {
	m := regexp.MustCompile(`(?s)<textarea[^>]*>\n?(.*?)</textarea>`).FindStringSubmatch(a.body)
	if m == nil {
		return ""
	}
	return html.UnescapeString(m[1])
}
