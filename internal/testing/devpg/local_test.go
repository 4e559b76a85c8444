//go:build unix

package devpg_test

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestLocalServerWorksAndCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	s := openLocal(t)
	tr := mustTraces(t, s)
	if err := tr.left(); err == nil {
		t.Fatal("nothing to leave behind: the test looks in the wrong place")
	}
	var closing sync.WaitGroup
	for range 3 { // concurrent and repeated calls: each returns when all is gone
		closing.Go(func() {
			if err := errors.Join(s.Close(), tr.left()); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	if err := s.Start(t.Context()); err == nil {
		t.Error("Start after Close: got no error")
	}
}

func TestLocalServerIsPrivateAndHasItsSettings(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t, devpg.WithSettings(map[string]string{"max_connections": "20", "listen_addresses": "*"}))
	const shown = `SELECT concat_ws(' ', current_setting('max_connections'), current_setting('listen_addresses'))`
	if got := query(t, s.URL(), shown); got != "20 127.0.0.1" {
		t.Errorf("max_connections and listen_addresses are %s", got)
	}
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("postgres", "guess")
	if err := openDB(t, u.String()).PingContext(t.Context()); err == nil {
		t.Error("a wrong password was accepted")
	}
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "local")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
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

func TestStopAndStartKeepData(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := openLocal(t)
	db := openDB(t, s.URL())
	do(t, s.URL(), "CREATE TABLE kept(n int)")
	crash := func() error { // by itself
		pid := mustTraces(t, s).pid
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		eventually(t, func() error { // a backend may answer until it notices
			if running(pid) || db.PingContext(t.Context()) == nil {
				return errors.New("it still answers")
			}
			return nil
		})
		return nil
	}
	for _, stop := range []func() error{
		func() error { return s.Stop("fast") },
		func() error { return s.Stop("immediate") },
		s.Kill,
		crash,
	} {
		do(t, s.URL(), "INSERT INTO kept VALUES (1)")
		if err := errors.Join(stop(), s.Start(t.Context()), s.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	if rows := query(t, s.URL(), "SELECT count(*) FROM kept"); rows != "4" {
		t.Errorf("%s rows, want 4", rows)
	}
	if err := s.Stop("gently"); err == nil || !strings.Contains(err.Error(), "gently") {
		t.Errorf("unknown mode: got error %v", err)
	}
	if err := errors.Join(s.Stop("fast"), s.Stop("fast")); err != nil { // twice
		t.Error(err)
	}
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("the server answers after Stop")
	}
}

// The first server's data directory is made by initdb, later ones are copies of it. A broken
// template is no obstacle.
func TestLaterDataDirectoriesAreCopies(t *testing.T) {
	needs.Long(t)
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	start := func() string {
		s := openLocal(t)
		defer s.Close()
		do(t, s.URL(), "CREATE TABLE mine (n int)")
		return query(t, s.URL(), "SELECT system_identifier FROM pg_control_system()")
	}
	first, second := start(), start()
	if first != second {
		t.Errorf("clusters %s and %s, want a copy", first, second)
	}
	directory, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	templates, err := filepath.Glob(filepath.Join(directory, "outbox-devpg", "*"))
	if err != nil || len(templates) != 1 {
		t.Fatalf("the cache has %q, %v; want one template", templates, err)
	}
	if err := os.Truncate(filepath.Join(templates[0], "data", "global", "pg_control"), 0); err != nil {
		t.Fatal(err)
	}
	third := start()
	if third == first {
		t.Errorf("cluster %s is a copy of a broken template", third)
	}
	if fourth := start(); fourth != third {
		t.Errorf("clusters %s and %s: the broken template was not replaced", third, fourth)
	}
}
