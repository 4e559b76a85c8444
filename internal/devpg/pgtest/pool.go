package pgtest

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"

	"github.com/txoutbox/outbox/internal/devpg"
)

const (
	envDriver = "OUTBOX_TEST_DRIVER"
	envParams = "OUTBOX_TEST_PARAMS"
	envPooler = "OUTBOX_TEST_POOLER"
)

// Open is sql.Open with [PoolURL]: for the pools of apps and relays, and for all of a test's own statements that need no session.
func Open(driver, direct string) (*sql.DB, error) {
	through, err := PoolURL(driver, direct)
	if err != nil {
		return nil, err
	}
	return sql.Open(driver, through)
}

// PoolURL is the URL of a pool in the tests that the environment asks for. Parameters that direct has already stay.
//
//   - OUTBOX_TEST_PARAMS, like binary_parameters=yes, are parameters for the driver that OUTBOX_TEST_DRIVER names: pgx, or lib/pq, the
//     default.
//   - OUTBOX_TEST_POOLER=pgbouncer leads through a PgBouncer in transaction mode, which the tests start before the server that they
//     share, and adds what each driver needs there. Where direct leads elsewhere, as another user, or has settings of a session, which
//     PgBouncer refuses, it stays direct.
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
		// without a statement by a name, and without a statement in two messages that might go to two sessions
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
	if !pooled {
		return u.String(), nil
	}
	return viaPooler(u)
}

// sessionless are the parameters that a driver keeps for itself, and one that PgBouncer knows.
var sessionless = map[string]bool{"sslmode": true, "application_name": true, "connect_timeout": true, "binary_parameters": true, "default_query_exec_mode": true}

func viaPooler(u *url.URL) (string, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return u.String(), nil
	}
	server, err := url.Parse(shared.server.URL())
	if err != nil {
		return "", err
	}
	if u.Host != server.Host || u.User.String() != server.User.String() {
		return u.String(), nil
	}
	for name := range u.Query() {
		if !sessionless[name] {
			return u.String(), nil
		}
	}
	if shared.pooler == nil && shared.poolerErr == nil {
		shared.pooler, shared.poolerErr = openPooler(os.Getenv(envPooler))
	}
	if shared.poolerErr != nil {
		return "", shared.poolerErr
	}
	return shared.pooler.URL(u.String())
}

func openPooler(kind string) (*devpg.Pooler, error) {
	if kind != "pgbouncer" {
		return nil, fmt.Errorf("pgtest: %s is %q, want pgbouncer or nothing", envPooler, kind)
	}
	return shared.server.OpenPooler(shared.ctx)
}
