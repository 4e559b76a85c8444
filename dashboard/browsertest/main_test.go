package browsertest_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// serve starts a server of the test's own with a dashboard, in which the actor may do everything.
// The URL is that of its overview.
func serve(t testing.TB, db *relaytest.Database, actor string) (url string) {
	t.Helper()
	d, err := dashboard.New(db.DB, dashboard.Config{
		BasePath: "/outbox",
		Authorize: func(*http.Request) (dashboard.Access, string) {
			return dashboard.ViewPayloads | dashboard.Operate, actor
		},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/outbox/", d)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL + "/outbox/"
}
