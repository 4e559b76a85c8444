// Package pgtest gives tests a real PostgreSQL through devpg. A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
//
// Its tests then share one server, which is started when the first of them asks for it, and each gets a database of its
// own. Where no PostgreSQL can be had a test fails and says how to get one; none is skipped.
//
// The servers that it starts run with fsync=off, and on Linux with their files in memory: a commit survives every death of
// the server's processes, but not of the machine. All else is PostgreSQL's default, synchronous_commit included.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"reflect"
	"sync"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/needs"
)

// shared is the server of this process's tests.
var shared struct {
	mu     sync.Mutex
	ctx    context.Context // ends with Main; nil outside of it
	opened bool
	server *devpg.Server
	err    error

	templates map[uintptr]template // of Prepared, by its function
	ends      map[*func()]bool     // of AtEnd

	pooler    *devpg.Pooler // before the server, once a pool was opened through it
	poolerErr error
}

// template is a database that Prepared copies.
type template struct {
	url  string
	drop func()
}

// Main runs a package's tests and returns the code for os.Exit. It closes the tests' server at the end, and also on
// SIGINT and SIGTERM, when it exits with 130 itself.
func Main(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	shared.mu.Lock()
	shared.ctx = ctx
	shared.mu.Unlock()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-signals:
		case <-ended:
			return
		}
		signal.Stop(signals) // the next one kills
		cancel()             // an opening gives up
		closeShared()
		os.Exit(130)
	}()

	code := m.Run()
	err := closeShared()
	switch {
	case ctx.Err() != nil:
		return 130
	case err != nil:
		return max(code, 1)
	}
	return code
}

// Tests are a package's tests with [Main] as their Run, for a TestMain that looks at what is left when the server is closed.
type Tests struct{ M *testing.M }

// Run is Main.
func (t Tests) Run() int { return Main(t.M) }

func closeShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		return nil
	}
	for end := range shared.ends {
		(*end)()
	}
	for _, made := range shared.templates {
		made.drop()
	}
	var err error
	if shared.pooler != nil {
		err = shared.pooler.Close()
	}
	err = errors.Join(err, shared.server.Close())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return err
}

// Server returns the server that the package's tests share; it is not the caller's to stop or close. Where there is none
// to be had the test fails.
func Server(t testing.TB) *devpg.Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.ctx == nil {
		t.Fatal("pgtest: the package needs func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }")
	}
	if !shared.opened {
		shared.opened = true
		shared.server, shared.err = devpg.Open(shared.ctx, logf, devpg.WithMemory(), settings(nil))
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}

// Database returns the URL of an empty database of the test's own. It is dropped after the test, with the connections
// that are still open to it.
func Database(t testing.TB) string {
	t.Helper()
	return Encoded(t, "UTF8")
}

// Encoded is Database in another encoding.
func Encoded(t testing.TB, encoding string) string {
	t.Helper()
	url, drop, err := Server(t).EncodedDatabase(t.Context(), encoding)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return url
}

// Prepared is Database with what prepare made of an empty one. That happens once for each function; the others are copies, which
// are had sooner. prepare is no closure, and leaves no connection open.
func Prepared(t testing.TB, prepare func(url string) error) string {
	t.Helper()
	url, drop, err := copyOf(t.Context(), Server(t), prepare)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	return url
}

// Kept is Prepared with a database that the caller drops.
func Kept(t testing.TB, prepare func(url string) error) (url string, drop func()) {
	t.Helper()
	url, drop, err := copyOf(t.Context(), Server(t), prepare)
	if err != nil {
		t.Fatal(err)
	}
	return url, drop
}

// AtEnd calls end when all tests have ended. The function that it returns calls it now instead.
func AtEnd(end func()) (now func()) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.ends == nil {
		shared.ends = map[*func()]bool{}
	}
	key := &end
	shared.ends[key] = true
	return func() {
		shared.mu.Lock()
		there := shared.ends[key]
		delete(shared.ends, key)
		shared.mu.Unlock()
		if there {
			end()
		}
	}
}

func copyOf(ctx context.Context, server *devpg.Server, prepare func(url string) error) (url string, drop func(), err error) {
	template, err := templateOf(server, prepare)
	if err != nil {
		return "", nil, err
	}
	return server.CopyDatabase(ctx, template)
}

func templateOf(server *devpg.Server, prepare func(url string) error) (string, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	function := reflect.ValueOf(prepare).Pointer()
	if made, ok := shared.templates[function]; ok {
		return made.url, nil
	}
	url, drop, err := server.NewDatabase(shared.ctx)
	if err != nil {
		return "", err
	}
	if err := prepare(url); err != nil {
		drop()
		return "", err
	}
	if shared.templates == nil {
		shared.templates = map[uintptr]template{}
	}
	shared.templates[function] = template{url, drop}
	return url, nil
}

// Local returns a server of the test's own, with the given settings, that its Stop and Start work on. It is closed after
// the test. It needs server binaries, installed or embedded, whatever kind of server the other tests use; without them
// the test fails.
func Local(t testing.TB, with map[string]string) *devpg.Server {
	t.Helper()
	s, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithMemory(), settings(with))
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

// Standby returns a hot standby of the server, which is one of Local's, and closes it after the test. The test is skipped where the
// server's programs cannot make one.
func Standby(t testing.TB, of *devpg.Server) *devpg.Server {
	t.Helper()
	s, err := of.Standby(t.Context())
	if errors.Is(err, devpg.ErrNoBackup) {
		needs.Missing(t, "pg_basebackup beside the server's programs", "postgresql-client")
	}
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

func settings(with map[string]string) devpg.Option {
	merged := map[string]string{"fsync": "off"}
	if os.Getenv(envPooler) != "" {
		merged["client_connection_check_interval"] = "100ms" // a statement ends soon where no cancel request reaches it
	}
	maps.Copy(merged, with)
	return devpg.WithSettings(merged)
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
