//go:build unix

package devpg

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestNewestBinariesComeFirst(t *testing.T) {
	want := []string{
		"/usr/lib/postgresql/17/bin",
		"/opt/homebrew/opt/postgresql@16/bin",
		"/usr/lib/postgresql/15/bin",
		"/usr/pgsql-15/bin",
		"/Applications/Postgres.app/Contents/Versions/9.6/bin",
		"/Applications/Postgres.app/Contents/Versions/latest/bin",
	}
	got := newestFirst([]string{want[2], want[5], want[3], want[0], want[4], want[1]})
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLocalServerWorksAndCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	s := local(t)
	tr := tracesOf(t, s.URL())
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
	s := local(t, WithSettings(map[string]string{"max_connections": "20", "listen_addresses": "*"}))
	const shown = `SELECT concat_ws(' ', current_setting('max_connections'), current_setting('listen_addresses'))`
	if got := query(t, s.URL(), shown); got != "20 127.0.0.1" {
		t.Errorf("max_connections and listen_addresses are %s", got)
	}
	u := *s.url
	u.User = url.UserPassword("postgres", "guess")
	if err := openDB(t, u.String()).PingContext(t.Context()); err == nil {
		t.Error("a wrong password was accepted")
	}
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "local")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	tmp := openDirectory(t)
	t.Setenv("TMPDIR", tmp)
	_, _, err := open(t, WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error is without the server's reason: %v", err)
	}
	empty(t, tmp)
}

func TestStopAndStartKeepData(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	s := local(t)
	db := openDB(t, s.URL())
	if err := s.administer(t.Context(), "CREATE TABLE kept(n int)"); err != nil {
		t.Fatal(err)
	}
	crash := func() error { // by itself
		if err := syscall.Kill(tracesOf(t, s.URL()).pid, syscall.SIGKILL); err != nil {
			return err
		}
		eventually(t, func() error { // a backend may answer until it notices
			if s.local.server.Ended() == nil || db.PingContext(t.Context()) == nil {
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
		query(t, s.URL(), "INSERT INTO kept VALUES (1) RETURNING n")
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
	template := ""
	start := func() string {
		s := local(t)
		defer s.Close()
		template = s.local.template()
		if err := s.administer(t.Context(), "CREATE TABLE mine (n int)"); err != nil {
			t.Fatal(err)
		}
		return query(t, s.URL(), "SELECT system_identifier FROM pg_control_system()")
	}
	first, second := start(), start()
	if first != second {
		t.Errorf("clusters %s and %s, want a copy", first, second)
	}
	if err := os.Truncate(filepath.Join(template, "global", "pg_control"), 0); err != nil {
		t.Fatal(err)
	}
	third := start()
	if third == first {
		t.Errorf("cluster %s is a copy of a broken template", third)
	}
	if fourth := start(); fourth != third {
		t.Errorf("clusters %s and %s: the broken template was not replaced", third, fourth)
	}
	if all, err := os.ReadDir(filepath.Dir(template)); err != nil || len(all) != 1 {
		t.Errorf("the cache has %v, %v; want one template", all, err)
	}
}

// openInAChild opens a server, prints its URL, and ends as its parent says, without Close.
func openInAChild(ctx context.Context, mode string) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGHUP) // which a script's background job ignores
	options := []Option{WithMemory()}
	var err error
	if mode == "docker" {
		err = os.Setenv("OUTBOX_TEST_POSTGRES", mode)
	} else {
		options = append(options, WithLocal())
		err = syscall.Setpgid(0, 0) // as a shell would
	}
	if err != nil {
		return err
	}
	s, err := Open(context.Background(), nil, options...)
	if err == nil && mode == "restart" {
		err = errors.Join(s.Stop("fast"), s.Start(context.Background()))
	}
	if err != nil {
		return err
	}
	fmt.Println(s.URL())
	select {
	case <-ctx.Done():
	case <-interrupted:
	}
	return errors.New("ended without Close")
}

// startChild runs openInAChild in a process, and returns the URL of its server.
func startChild(t *testing.T, mode string) (p *child.Process, url string) {
	t.Helper()
	r, w := io.Pipe()
	p, err := child.Start(mode, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill9)
	go func() {
		<-p.Ended
		w.Close()
	}()
	output := bufio.NewReader(r)
	url, err = output.ReadString('\n')
	go func() { _, _ = io.Copy(io.Discard, output) }()
	if err != nil || !strings.HasPrefix(url, "postgres://") {
		t.Fatalf("child has no server: %s, %v", url, err)
	}
	return p, strings.TrimSpace(url)
}

// traces is what a local server could leave behind.
type traces struct {
	directory string
	pid       int
}

func tracesOf(t *testing.T, url string) traces {
	t.Helper()
	data := query(t, url, "SHOW data_directory")
	content, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return traces{filepath.Dir(data), pid}
}

// left says what is still there.
func (tr traces) left() error {
	if _, err := os.Stat(tr.directory); !os.IsNotExist(err) {
		return fmt.Errorf("directory %s is still there (%v)", tr.directory, err)
	}
	if running(tr.pid) {
		return fmt.Errorf("server process %d still runs", tr.pid)
	}
	return nil
}

// running does not count a process that has ended and that nobody has waited for.
func running(pid int) bool {
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && !strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
	}
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "Z")
}

func TestServerEndsWithItsProgram(t *testing.T) {
	needs.CI(t)
	for _, test := range []struct {
		mode   string
		signal syscall.Signal // zero for an end by itself
		long   bool
	}{
		{"exit", 0, true},
		{"restart", 0, true}, // of the server
		{"block", syscall.SIGKILL, false},
		{"block", syscall.SIGINT, false},
		{"block", syscall.SIGHUP, true},
	} {
		t.Run(fmt.Sprint(test.mode, " ", test.signal), func(t *testing.T) {
			if test.long {
				needs.Long(t)
			}
			t.Parallel()
			p, url := startChild(t, test.mode)
			tr := tracesOf(t, url)
			if test.signal == 0 {
				_ = p.Stop()
			} else if err := syscall.Kill(-p.Pid, test.signal); err != nil { // the group, as a terminal's does
				t.Fatal(err)
			}
			<-p.Ended
			if p.Err == nil {
				t.Error("program ended well, want a failure")
			}
			eventually(t, func() error {
				if _, err := os.Stat(tr.directory); err == nil {
					return errors.New("its files are still there")
				}
				return nil
			})
			if err := tr.left(); err != nil { // which would end without its files, too, but in disorder
				t.Error(err)
			}
		})
	}
}

func TestRootRunsTheServerAsAnotherUserThatCanReachIt(t *testing.T) {
	needs.Long(t)
	clearChoice(t)
	ps := needs.Program(t, "procps", "ps")
	closed := openDirectory(t)
	if err := os.Chmod(closed, 0o700); err != nil { // as root, a directory that the server's user cannot enter
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	tr := tracesOf(t, local(t).URL())
	owner, err := exec.Command(ps, "-o", "uid=", "-p", strconv.Itoa(tr.pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	uid := strings.TrimSpace(string(owner))
	if uid == "0" {
		t.Error("server runs as root")
	}
	if inside := filepath.Dir(tr.directory) == closed; inside != (os.Geteuid() != 0) {
		t.Errorf("as user %d the server of user %s is in %s, TMPDIR is %s", os.Geteuid(), uid, tr.directory, closed)
	}
}
