package pgtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// childMode in the environment makes this test binary run TestInAChild, which ends as it says.
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
	var open *sql.Conn
	t.Run("first", func(t *testing.T) {
		first = pgtest.Database(t)
		db, err := sql.Open("postgres", first)
		if err == nil {
			open, err = db.Conn(context.Background())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if err := open.PingContext(t.Context()); err == nil {
		t.Error("a connection outlived its database")
	}
	t.Run("second", func(t *testing.T) {
		second = pgtest.Database(t)
		const found = `SELECT concat_ws(' ', current_setting('server_encoding'), datcollate, (SELECT count(*) FROM
			pg_stat_user_tables)) FROM pg_database WHERE datname = current_database()`
		if got := query(t, second, found); got != "UTF8 C 0" {
			t.Errorf("encoding, locale and number of tables are %s, want UTF8 C 0", got)
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
		if got := query(t, pgtest.Server(t).URL(),
			"SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); got != "0" {
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

// TestInAChild is the body of the programs that other tests start.
func TestInAChild(t *testing.T) {
	mode := os.Getenv(childMode)
	if mode == "" {
		return
	}
	fmt.Println("server", pgtest.Server(t).URL())
	if mode == "fail" {
		t.Fatal("as asked")
	}
}

func child(mode string, env ...string) (out string, code int) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestInAChild$")
	cmd.Env = append(append(os.Environ(), childMode+"="+mode, "OUTBOX_TEST_DATABASE_URL="), env...)
	said, _ := cmd.CombinedOutput()
	return string(said), cmd.ProcessState.ExitCode()
}

func TestTheServerEndsWithTheTests(t *testing.T) {
	needs.CI(t)
	for mode, want := range map[string]int{"pass": 0, "fail": 1} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			kind := os.Getenv("OUTBOX_TEST_POSTGRES")
			if kind == "url" { // such a server is not the child's to end
				kind = ""
			}
			out, code := child(mode, "OUTBOX_TEST_POSTGRES="+kind)
			if code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			_, line, _ := strings.Cut(out, "server ")
			server, _, _ := strings.Cut(line, "\n")
			db, err := sql.Open("postgres", server)
			if err != nil || server == "" {
				t.Fatalf("child has no server: %v\n%s", err, out)
			}
			defer db.Close()
			if err := db.PingContext(t.Context()); err == nil {
				t.Error("server still answers")
			}
		})
	}
}
