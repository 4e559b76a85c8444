package dashboard_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
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
	db      *relaytest.Database
	log     *relaytest.Records
	handler *dashboard.Handler
}

// as lets everybody in with the access.
func as(a dashboard.Access) func(*http.Request) (dashboard.Access, string) {
	return func(*http.Request) (dashboard.Access, string) { return a, "ada@example.com" }
}

const everything = dashboard.ViewPayloads | dashboard.Operate

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
	s.handler = d
	d.SetSearchTime(time.Hour) // a busy machine ends no search
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
