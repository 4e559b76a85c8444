package pgtest_test

import (
	"net/url"
	"os"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestParametersReachTheDriverThatTheyAreFor(t *testing.T) {
	t.Setenv("OUTBOX_TEST_POOLER", "")
	const direct = "postgres://u:p@127.0.0.1:1/d?sslmode=disable"
	for _, c := range []struct{ tested, params, driver, given, want string }{
		{"", "", "postgres", "", ""},
		{"", "binary_parameters=yes", "postgres", "", "yes"},
		{"", "binary_parameters=yes", "a wrapper of lib/pq", "", "yes"},
		{"", "binary_parameters=yes", "pgx", "", ""},
		{"", "binary_parameters=yes", "postgres", "&binary_parameters=no", "no"},
		{"pgx", "binary_parameters=yes", "postgres", "", ""},
		{"pgx", "binary_parameters=yes", "pgx", "", "yes"},
	} {
		t.Setenv("OUTBOX_TEST_DRIVER", c.tested)
		t.Setenv("OUTBOX_TEST_PARAMS", c.params)
		got, err := pgtest.PoolURL(c.driver, direct+c.given)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(got); err != nil || u.Query().Get("binary_parameters") != c.want || u.Host != "127.0.0.1:1" ||
			u.Path != "/d" {
			t.Errorf("%+v: got %s, %v", c, got, err)
		}
	}
}

// Behind a pooler a client's transactions go to any session of the server; else all go to its own.
func TestPoolsLeadWhereTheEnvironmentSays(t *testing.T) {
	const clients = 3
	driver := os.Getenv("OUTBOX_TEST_DRIVER")
	if driver == "" {
		driver = "postgres"
	}
	db, err := pgtest.Open(driver, pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxIdleConns(clients)
	sessions := map[int]bool{} // that the server has for the clients
	var ends []func() error
	for range clients {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if err := tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		sessions[pid] = true
		ends = append(ends, tx.Rollback)
	}
	for _, end := range ends {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if len(sessions) != clients {
		t.Fatalf("%d transactions at once were in %d sessions", clients, len(sessions))
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	own := map[int]bool{}
	for range 10 * clients {
		var pid int
		if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		own[pid] = true
	}
	if shared, want := len(own) > 1, os.Getenv("OUTBOX_TEST_POOLER") != ""; shared != want {
		t.Errorf("a connection's statements were in %d sessions; behind a pooler: %v", len(own), want)
	}
}
