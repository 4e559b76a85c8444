package pgtest_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// childMode in the environment makes this test binary run TestInAChild alone, which ends as the mode says.
const childMode = "OUTBOX_PGTEST_TEST_CHILD"

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func query(t *testing.T, url, statement string) string {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var value string
	if err := db.QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	var first, second string
	t.Run("first", func(t *testing.T) { first = pgtest.Database(t) })
	t.Run("second", func(t *testing.T) {
		second = pgtest.Database(t)
		if got := query(t, second, "SELECT count(*) FROM pg_stat_user_tables"); got != "0" {
			t.Errorf("database has %s tables, want none", got)
		}
	})
	if first == second {
		t.Error("two tests share a database")
	}
	for _, database := range []string{first, second} {
		u, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(u.Path, "/")
		if got := query(t, pgtest.Server(t).URL(), "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); got != "0" {
			t.Errorf("database %s outlived its test", name)
		}
	}
}

func TestPreparedDatabasesAreCopiesOfOne(t *testing.T) {
	prepare := func(url string) error {
		preparations++
		db, err := sql.Open("postgres", url)
		if err == nil {
			_, err = db.Exec("CREATE TABLE prepared (n int)")
			db.Close()
		}
		return err
	}
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			own := pgtest.Prepared(t, prepare)
			query(t, own, "INSERT INTO prepared VALUES (1) RETURNING n")
			if got := query(t, own, "SELECT count(*) FROM prepared"); got != "1" {
				t.Errorf("it has %s rows, want its own", got)
			}
		})
	}
	if preparations != 1 {
		t.Errorf("it was prepared %d times", preparations)
	}
}

// preparations outlasts a run of the tests, as the database does, with -count.
var preparations int

func TestLocalServerStopsAndStarts(t *testing.T) {
	needs.Long(t)
	s := pgtest.Local(t, map[string]string{"max_connections": "7"})
	if err := errors.Join(s.Stop("immediate"), s.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"max_connections": "7", "fsync": "off", "synchronous_commit": "on"} {
		if got := query(t, s.URL(), "SHOW "+name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// TestInAChild is the body of the programs that TestTheServerEndsWithTheTests starts.
func TestInAChild(t *testing.T) {
	mode := os.Getenv(childMode)
	if mode == "" {
		return
	}
	if mode == "none" {
		pgtest.Server(t)
		return
	}
	s := pgtest.Server(t)
	fmt.Println("server", s.URL())
	switch mode {
	case "pass":
	case "fail":
		t.Fatal("as asked")
	case "panic":
		panic("as asked")
	case "panic elsewhere":
		go panic("as asked")
		select {}
	case "signal":
		select {}
	}
}

func TestTheServerEndsWithTheTests(t *testing.T) {
	needs.CI(t)
	for _, test := range []struct {
		mode   string
		signal os.Signal
		code   int
		long   bool
	}{
		{"pass", nil, 0, false},
		{"fail", nil, 1, true},
		{"panic", nil, 2, true},
		{"panic elsewhere", nil, 2, true},
		{"signal", os.Interrupt, 130, true},
		{"signal", os.Kill, -1, false},
	} {
		t.Run(fmt.Sprint(test.mode, " ", test.signal), func(t *testing.T) {
			if test.long {
				needs.Long(t)
			}
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestInAChild$")
			cmd.Env = append(os.Environ(), childMode+"="+test.mode, "OUTBOX_TEST_DATABASE_URL=")
			if os.Getenv("OUTBOX_TEST_POSTGRES") == "url" { // such a server is not the child's to end
				cmd.Env = append(cmd.Env, "OUTBOX_TEST_POSTGRES=")
			}
			r, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var server string
			if _, err := fmt.Fscanf(r, "server %s\n", &server); err != nil {
				t.Fatal("child has no server: ", err)
			}
			if test.signal != nil {
				if err := cmd.Process.Signal(test.signal); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("exit code %d, want %d", got, test.code)
			}
			awaitEnd(t, server)
		})
	}
}

// awaitEnd waits until nothing answers at a server's URL any more.
func awaitEnd(t *testing.T, server string) {
	t.Helper()
	db, err := sql.Open("postgres", server)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for db.PingContext(t.Context()) == nil {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("server still answers")
		}
	}
}

func TestWithoutAnyServerTestsFail(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestInAChild$")
	cmd.Env = append(os.Environ(), childMode+"=none", "OUTBOX_TEST_POSTGRES=url", "OUTBOX_TEST_DATABASE_URL=")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "devpg: no PostgreSQL: install its server") {
		t.Errorf("got error %v and output\n%s", err, out)
	}
}
