package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"sync"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgbouncer"
)

// Open is sql.Open with [PoolURL]: for the pools of apps and relays, and for all of a test's own
// statements that need no session.
func Open(driver, direct string) (*sql.DB, error) {
	through, err := PoolURL(driver, direct)
	if err != nil {
		return nil, err
	}
	return sql.Open(driver, through)
}

// PoolURL is the URL of a pool in the tests that the environment asks for. Parameters that direct
// has already stay.
//
//   - OUTBOX_TEST_PARAMS, like binary_parameters=yes, are parameters for the driver that
//     OUTBOX_TEST_DRIVER names: pgx, or lib/pq, the default.
//   - OUTBOX_TEST_POOLER=pgbouncer leads through a PgBouncer in transaction mode, which the tests
//     start before the server that they share, and adds what each driver needs there. Where direct
//     leads elsewhere, as another user, or has settings of a session, which PgBouncer refuses, it
//     stays direct.
func PoolURL(driver, direct string) (string, error) {
	u, err := url.Parse(direct)
	if err != nil {
		return direct, nil // the driver says what is wrong with it
	}
	asked, err := url.ParseQuery(os.Getenv(envParams))
	if err != nil {
		return "", fmt.Errorf("pgtest: %s: %w", envParams, err)
	}
	if (driver == "pgx") != (os.Getenv(envDriver) == "pgx") {
		asked = url.Values{}
	}
	pooled := os.Getenv(envPooler) != ""
	if pooled {
		// no statement by name, and none in two messages, which might go to two sessions
		needed, value := "binary_parameters", "yes"
		if driver == "pgx" {
			needed, value = "default_query_exec_mode", "exec"
		}
		if !asked.Has(needed) {
			asked.Set(needed, value)
		}
	}
	query := u.Query()
	for name, values := range asked {
		if !query.Has(name) {
			query[name] = values
		}
	}
	u.RawQuery = query.Encode()
	if pooled && fitsPooler(u) {
		pooler, err := startPooler()
		if err != nil {
			return "", err
		}
		u = pooler.URL(u)
	}
	return u.String(), nil
}

// sessionless are the parameters that a driver keeps for itself, and one that PgBouncer knows.
var sessionless = map[string]bool{
	"sslmode": true, "application_name": true, "connect_timeout": true,
	"binary_parameters": true, "default_query_exec_mode": true,
}

func fitsPooler(u *url.URL) bool {
	for name := range u.Query() {
		if !sessionless[name] {
			return false
		}
	}
	server := sharedURL()
	return server != nil && u.Host == server.Host && u.User.String() == server.User.String()
}

// sharedURL is that of the shared server, nil until it is open.
func sharedURL() *url.URL {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	u, _ := url.Parse(shared.server.URL()) // is one
	return u
}

var startPooler = sync.OnceValues(func() (*pgbouncer.Pooler, error) {
	if kind := os.Getenv(envPooler); kind != "pgbouncer" {
		return nil, fmt.Errorf("pgtest: %s is %q, want pgbouncer or nothing", envPooler, kind)
	}
	p, err := pgbouncer.Start(context.Background(), sharedURL())
	if err == nil {
		AtEnd(p.Close)
	}
	return p, err
})
