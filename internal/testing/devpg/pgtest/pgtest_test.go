package pgtest_test

import (
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

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func query(t *testing.T, url, statement string) string {
	t.Helper()
	var value string
	if err := open(t, url).QueryRowContext(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	earlier := ""
	for _, name := range []string{"first", "second"} {
		var database string
		var conn *sql.Conn
		ran := t.Run(name, func(own *testing.T) {
			database = pgtest.Database(own)
			const found = `SELECT concat_ws(' ', current_setting('server_encoding'), datcollate, (SELECT count(*) FROM
				pg_stat_user_tables)) FROM pg_database WHERE datname = current_database()`
			if got := query(own, database, found); got != "UTF8 C 0" {
				own.Errorf("encoding, locale and number of tables are %s, want UTF8 C 0", got)
			}
			var err error
			if conn, err = open(t, database).Conn(t.Context()); err != nil { // which outlasts this test
				own.Fatal(err)
			}
		})
		if !ran {
			return
		}
		if err := conn.PingContext(t.Context()); err == nil {
			t.Error("a connection outlived its database")
		}
		u, err := url.Parse(database)
		if err != nil {
			t.Fatal(err)
		}
		dbname := strings.TrimPrefix(u.Path, "/")
		if got := query(t, pgtest.Server(t).URL(), "SELECT count(*) FROM pg_database WHERE datname = '"+dbname+"'"); got != "0" {
			t.Errorf("database %s outlived its test", dbname)
		}
		if database == earlier {
			t.Error("two tests share a database")
		}
		earlier = database
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

// TestInAChild is the body of the programs that TestTheServerEndsWithTheTests starts.
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

func TestTheServerEndsWithTheTests(t *testing.T) {
	needs.CI(t)
	kind := os.Getenv("OUTBOX_TEST_POSTGRES")
	if kind == "url" { // such a server is not the child's to end
		kind = ""
	}
	for mode, want := range map[string]int{"pass": 0, "fail": 1} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestInAChild$")
			cmd.Env = append(os.Environ(), childMode+"="+mode, "OUTBOX_TEST_DATABASE_URL=", "OUTBOX_TEST_POSTGRES="+kind)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, want %d", code, want)
			}
			_, line, _ := strings.Cut(string(out), "server ")
			server, _, _ := strings.Cut(line, "\n")
			if server == "" {
				t.Fatalf("child has no server:\n%s", out)
			}
			if err := open(t, server).PingContext(t.Context()); err == nil {
				t.Error("server still answers")
			}
		})
	}
}

func TestParametersReachTheDriverThatTheyAreFor(t *testing.T) {
	t.Setenv("OUTBOX_TEST_POOLER", "")
	const direct = "postgres://u:p@127.0.0.1:1/d?sslmode=disable"
	for _, c := range []struct{ tested, params, driver, given, want string }{
		{"", "", "postgres", "", ""},
		{"", "binary_parameters=yes", "postgres", "", "yes"},
		{"", "binary_parameters=yes", "a wrapper of lib/pq", "", "yes"},
		{"", "binary_parameters=yes", "pgx", "", ""},
		{"", "binary_parameters=yes", "postgres", "&binary_parameters=no", "no"},
		{"pgx", "binary_parameters=yes", "postgres", "", ""},
		{"pgx", "binary_parameters=yes", "pgx", "", "yes"},
	} {
		t.Setenv("OUTBOX_TEST_DRIVER", c.tested)
		t.Setenv("OUTBOX_TEST_PARAMS", c.params)
		got, err := pgtest.PoolURL(c.driver, direct+c.given)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(got); err != nil || u.Query().Get("binary_parameters") != c.want || u.Host != "127.0.0.1:1" ||
			u.Path != "/d" {
			t.Errorf("%+v: got %s, %v", c, got, err)
		}
	}
}

// Behind a pooler a client's transactions go to any session of the server; else all go to its own.
func TestPoolsLeadWhereTheEnvironmentSays(t *testing.T) {
	const clients = 3
	driver := os.Getenv("OUTBOX_TEST_DRIVER")
	if driver == "" {
		driver = "postgres"
	}
	db, err := pgtest.Open(driver, pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxIdleConns(clients)
	sessions := map[int]bool{} // that the server has for the clients
	var ends []func() error
	for range clients {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if err := tx.QueryRow("SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		sessions[pid] = true
		ends = append(ends, tx.Rollback)
	}
	for _, end := range ends {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if len(sessions) != clients {
		t.Fatalf("%d transactions at once were in %d sessions", clients, len(sessions))
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	own := map[int]bool{}
	for range 10 * clients {
		var pid int
		if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		own[pid] = true
	}
	if shared, want := len(own) > 1, os.Getenv("OUTBOX_TEST_POOLER") != ""; shared != want {
		t.Errorf("a connection's statements were in %d sessions; behind a pooler: %v", len(own), want)
	}
}
