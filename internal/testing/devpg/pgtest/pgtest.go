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
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
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
