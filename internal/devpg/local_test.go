//go:build unix

package devpg_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestLocalServerWorksAndCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	s := openLocal(t)
	if got := query(t, s.URL(), "SELECT 'it works'"); got != "it works" {
		t.Errorf("got %q", got)
	}
	tr := mustTraces(t, s)
	if err := tr.left(); err == nil {
		t.Fatal("nothing to leave behind: the test looks in the wrong place")
	}
	var closing sync.WaitGroup
	for range 3 { // concurrent and repeated calls: each returns when all is gone
		closing.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := tr.left(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	if err := s.Start(t.Context()); err == nil {
		t.Error("Start after Close: got no error")
	}
}

func TestLocalServerIsPrivate(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t)
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if host := u.Hostname(); !net.ParseIP(host).IsLoopback() {
		t.Errorf("server is at %s, want a loopback address", host)
	}
	if got := query(t, s.URL(), "SHOW listen_addresses"); got != "127.0.0.1" {
		t.Errorf("listen_addresses is %q", got)
	}
	if got := query(t, s.URL(), "SHOW unix_socket_directories"); got != "" {
		t.Errorf("unix_socket_directories is %q, want none", got)
	}
	u.User = url.UserPassword("postgres", "guess")
	if err := openDB(t, u.String()).PingContext(t.Context()); err == nil {
		t.Error("a wrong password was accepted")
	}
}

func TestSettings(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t, devpg.WithSettings(map[string]string{
		"max_connections":  "20",
		"application_name": "two words, 'quoted'",
		"port":             "1",
	}))
	for name, want := range map[string]string{
		"max_connections":    "20",
		"application_name":   "two words, 'quoted'",
		"fsync":              "off",
		"synchronous_commit": "on",
	} {
		if got := query(t, s.URL(), "SHOW "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "local")
	t.Setenv("TMPDIR", openDirectory(t))
	s, err := devpg.Open(t.Context(), t.Logf, devpg.WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil {
		s.Close()
		t.Fatal("got a server")
	}
	if !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error is without the server's reason: %v", err)
	}
	empty(t, os.Getenv("TMPDIR"))
}

func TestServersAtOnceDoNotMeet(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	servers := make([]*devpg.Server, 3)
	var opening sync.WaitGroup
	for i := range servers {
		opening.Go(func() {
			s, err := devpg.Open(t.Context(), t.Logf, devpg.WithLocal(), devpg.WithMemory())
			if err != nil {
				t.Error(err)
				return
			}
			servers[i] = s
		})
	}
	opening.Wait()
	urls, directories := map[string]bool{}, map[string]bool{}
	for _, s := range servers {
		if s == nil {
			continue
		}
		urls[s.URL()] = true
		directories[mustTraces(t, s).directory] = true
		defer s.Close()
	}
	if len(urls) != len(servers) || len(directories) != len(servers) {
		t.Errorf("%d servers have %d URLs and %d directories", len(servers), len(urls), len(directories))
	}
}

func TestStopAndStartKeepData(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t)
	db := openDB(t, s.URL())
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE kept(n int)"); err != nil {
		t.Fatal(err)
	}
	crash := func() error {
		pid := mustTraces(t, s).pid
		if err := kill(pid); err != nil {
			return err
		}
		eventually(t, func() error { return stillRuns(pid) })
		eventually(t, func() error { // a backend may answer until it notices
			if db.PingContext(t.Context()) == nil {
				return errors.New("a backend still answers")
			}
			return nil
		})
		return nil
	}
	for i, stop := range []struct {
		name string
		do   func() error
	}{
		{"fast", func() error { return s.Stop("fast") }},
		{"immediate", func() error { return s.Stop("immediate") }},
		{"crash", crash},
	} {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO kept VALUES ($1)", i); err != nil {
			t.Fatal(err)
		}
		url := s.URL()
		if err := stop.do(); err != nil {
			t.Fatalf("%s: %v", stop.name, err)
		}
		if err := db.PingContext(t.Context()); err == nil {
			t.Errorf("%s: server still answers", stop.name)
		}
		for range 2 { // a second Start does nothing
			if err := s.Start(t.Context()); err != nil {
				t.Fatalf("%s: %v", stop.name, err)
			}
		}
		if s.URL() != url {
			t.Errorf("%s: URL changed", stop.name)
		}
		var rows int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM kept").Scan(&rows); err != nil {
			t.Fatalf("%s: %v", stop.name, err)
		}
		if rows != i+1 {
			t.Errorf("%s: %d rows, want %d", stop.name, rows, i+1)
		}
	}
	if err := s.Stop("gently"); err == nil || !strings.Contains(err.Error(), "gently") {
		t.Errorf("unknown mode: got error %v", err)
	}
	if err := s.Stop("fast"); err != nil {
		t.Error(err)
	}
	if err := s.Stop("fast"); err != nil {
		t.Errorf("Stop of a stopped server: %v", err)
	}
}

func TestDatabasesAreEmptyAndDropEndsConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t)
	count := "SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_test_%'"
	first, dropFirst, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second, dropSecond, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first == second || query(t, s.URL(), count) != "2" {
		t.Errorf("databases %s and %s of %s", first, second, query(t, s.URL(), count))
	}
	if got := query(t, first, "SELECT current_setting('server_encoding') || ' ' || datcollate FROM pg_database "+
		"WHERE datname = current_database()"); got != "UTF8 C" {
		t.Errorf("encoding and locale are %q, want UTF8 C", got)
	}
	conn, err := openDB(t, first).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	dropFirst()
	if err := conn.PingContext(t.Context()); err == nil {
		t.Error("connection outlived its database")
	}
	dropSecond()
	if got := query(t, s.URL(), count); got != "0" {
		t.Errorf("%s databases are left", got)
	}
}
