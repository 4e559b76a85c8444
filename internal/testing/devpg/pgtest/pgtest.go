// Package pgtest gives tests a real PostgreSQL through devpg. A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
//
// Its tests then share one server, which is started when the first of them asks for it, and each
// gets a database of its own. Where no PostgreSQL can be had a test fails and says how to get one;
// none is skipped.
//
// The servers that it starts run with fsync=off, and on Linux with their files in memory: a commit
// survives every death of the server's processes, but not of the machine. PL/pgSQL is loaded with the
// server that a package's tests share. All else is PostgreSQL's default, synchronous_commit included.
package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"reflect"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgbouncer"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

const (
	envDriver = "OUTBOX_TEST_DRIVER"
	envParams = "OUTBOX_TEST_PARAMS"
	envPooler = "OUTBOX_TEST_POOLER"
)

// shared is the server of this process's tests.
var shared struct {
	mu     sync.Mutex
	inMain bool
	server *devpg.Server
	err    error
	ends   []func() error
}

// Main runs a package's tests and returns the code for os.Exit. It closes the tests' server at the
// end. Where the tests are killed, the server's watchdog stops it.
func Main(m *testing.M) int {
	shared.inMain = true
	code := m.Run()
	if err := closeShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

func closeShared() (err error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, end := range shared.ends {
		err = errors.Join(err, end())
	}
	if shared.server != nil {
		err = errors.Join(err, shared.server.Close())
	}
	return err
}

// AtEnd calls end when all tests have ended, before the server is closed.
func AtEnd(end func() error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.ends = append(shared.ends, end)
}

// Server returns the server that the package's tests share; it is not the caller's to stop or
// close. Where there is none to be had the test fails.
func Server(t testing.TB) *devpg.Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.inMain {
		t.Fatal("pgtest: the package needs func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }")
	}
	if shared.server == nil && shared.err == nil {
		logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
		// Most of the time of a test goes into new sessions, and a fifth of theirs into loading PL/pgSQL.
		preload := settings(map[string]string{"shared_preload_libraries": "plpgsql"})
		shared.server, shared.err = devpg.Open(context.Background(), logf, devpg.WithMemory(), preload)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// Database returns the URL of an empty database of the test's own. It is dropped after the test,
// with the connections that are still open to it.
func Database(t testing.TB) string {
	t.Helper()
	return Encoded(t, "UTF8")
}

// Encoded is Database in another encoding.
func Encoded(t testing.TB, encoding string) string {
	t.Helper()
	return owned(t)(Server(t).EncodedDatabase(t.Context(), encoding))
}

// ICU is Database with text in the order of an ICU locale. It skips the test where the server has no
// such databases.
func ICU(t testing.TB, locale string) string {
	t.Helper()
	url, drop, err := Server(t).ICUDatabase(t.Context(), locale)
	if errors.Is(err, devpg.ErrNoICU) {
		t.Skip(err)
	}
	return owned(t)(url, drop, err)
}

// Copied is Database with what is in the database of the URL, as CREATE DATABASE … TEMPLATE makes
// it. Nobody may be connected to that.
func Copied(t testing.TB, of string) string {
	t.Helper()
	return owned(t)(Server(t).CopiedDatabase(t.Context(), of))
}

// owned drops a new database after the test, and returns its URL.
func owned(t testing.TB) func(url string, drop func(), err error) string {
	return func(url string, drop func(), err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(drop)
		return url
	}
}

// Prepared is Database with what prepare made of an empty one. That happens once for each function;
// the others are copies, which are had sooner. prepare is no closure, and leaves no connection
// open.
func Prepared(t testing.TB, prepare func(url string) error) string {
	t.Helper()
	url, drop := Kept(t, prepare)
	t.Cleanup(drop)
	return url
}

// Kept is Prepared with a database that the caller drops.
func Kept(t testing.TB, prepare func(url string) error) (url string, drop func()) {
	t.Helper()
	function := reflect.ValueOf(prepare).Pointer()
	url, drop, err := Server(t).PreparedDatabase(context.Background(), function, prepare)
	if err != nil {
		t.Fatal(err)
	}
	return url, drop
}

// ExampleDatabase is [Database] for an example, which has no testing.TB: it panics where no
// PostgreSQL is to be had. The caller calls drop at its end.
func ExampleDatabase() (url string, drop func()) {
	url, drop, err := Server(example{}).NewDatabase(context.Background())
	if err != nil {
		panic(err)
	}
	return url, drop
}

// ExamplePrepared is [Kept] for an example.
func ExamplePrepared(prepare func(url string) error) (url string, drop func()) {
	return Kept(example{}, prepare)
}

// example is what this package uses of a testing.TB.
type example struct{ testing.TB }

func (example) Helper()           {}
func (example) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Local returns a server of the test's own, with the given settings, that its Stop and Start work
// on. It is closed after the test. It needs server programs, installed or embedded, whatever kind
// of server the other tests use; without them the test fails.
func Local(t testing.TB, with map[string]string) *devpg.Server {
	t.Helper()
	s, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithMemory(), settings(with))
	return closed(t, s, err)
}

// Standby returns a hot standby of the server, which is one of Local's, and closes it after the
// test. The test is skipped where the server's programs cannot make one.
func Standby(t testing.TB, of *devpg.Server) *devpg.Server {
	t.Helper()
	s, err := of.Standby(t.Context())
	if errors.Is(err, devpg.ErrNoBackup) {
		needs.Missing(t, "pg_basebackup beside the server's programs", "postgresql-client")
	}
	return closed(t, s, err)
}

// Upgraded stops the server, which is one of Local's, and returns what pg_upgrade makes of it: of
// the same version, with another system identifier. It is closed after the test, which is skipped
// where the server's programs have no pg_upgrade.
func Upgraded(t testing.TB, from *devpg.Server) *devpg.Server {
	t.Helper()
	s, err := from.Upgraded(t.Context())
	if errors.Is(err, devpg.ErrNoUpgrade) {
		needs.Missing(t, "pg_upgrade beside the server's programs", "postgresql")
	}
	return closed(t, s, err)
}

// closed closes the server after the test, unless it could not be opened.
func closed(t testing.TB, s *devpg.Server, err error) *devpg.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Program is the path of one of PostgreSQL's programs, of the server's version: an older pg_dump
// refuses a newer server. The test is skipped where the program is not beside the server's own.
func Program(t testing.TB, server *devpg.Server, name string) (path string) {
	t.Helper()
	path, err := server.Program(name)
	if err != nil {
		needs.Missing(t, name+" beside the server's programs", "postgresql-client")
	}
	return path
}

func settings(with map[string]string) devpg.Option {
	merged := map[string]string{"fsync": "off"}
	if os.Getenv(envPooler) != "" {
		// a statement ends soon where no cancel request reaches it
		merged["client_connection_check_interval"] = "100ms"
	}
	maps.Copy(merged, with)
	return devpg.WithSettings(merged)
}

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
//     OUTBOX_TEST_DRIVER names: pgx, pgxpool, or lib/pq, the default.
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
	if isPgx(driver) != isPgx(os.Getenv(envDriver)) {
		asked = url.Values{}
	}
	pooled := os.Getenv(envPooler) != ""
	if pooled {
		// no statement by name, and none in two messages, which might go to two sessions
		needed, value := "binary_parameters", "yes"
		if isPgx(driver) {
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

func isPgx(driver string) bool { return driver == "pgx" || driver == "pgxpool" }

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
