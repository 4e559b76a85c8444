package dashboard_test

import (
	"bytes"
	"cmp"
	"database/sql"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// newDatabase is a migrated database of the test's own. OUTBOX_TEST_DRIVER is the driver, postgres (lib/pq) or pgx.
func newDatabase(t testing.TB, opts ...schema.Option) *sql.DB {
	t.Helper()
	url := relaytest.Migrated(t, opts...)
	db, err := pgtest.Open(driver(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	urls.Store(db, url)
	return db
}

var urls sync.Map // by *sql.DB

func driver() string { return cmp.Or(os.Getenv("OUTBOX_TEST_DRIVER"), "postgres") }

func exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// text is a buffer for a logger.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// site is a dashboard that is served, with its database and its log.
type site struct {
	*httptest.Server
	db      *sql.DB
	log     *text
	handler *dashboard.Handler
}

// as lets everybody in with the access.
func as(a dashboard.Access) func(*http.Request) (dashboard.Access, string) {
	return func(*http.Request) (dashboard.Access, string) { return a, "ada@example.com" }
}

const everything = dashboard.ViewPayloads | dashboard.Operate

// serve mounts a dashboard at /outbox/ of a server of the test's own.
func serve(t testing.TB, db *sql.DB, c dashboard.Config) *site {
	t.Helper()
	s := &site{db: db, log: &text{}}
	c.BasePath, c.Logger = "/outbox", slog.New(slog.NewTextHandler(s.log, nil))
	d, err := dashboard.New(db, c)
	if err != nil {
		t.Fatal(err)
	}
	s.handler = d
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
