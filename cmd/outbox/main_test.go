package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// binary is the command, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "outbox-command")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "outbox")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := pgtest.Main(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// testDB is a database of a test's own, with the outbox in it.
type testDB struct{ *relaytest.Database }

func newDB(t testing.TB) *testDB { return openDB(t, relaytest.Migrated(t)) }

func openDB(t testing.TB, url string) *testDB { return &testDB{relaytest.Direct(t, url, "postgres")} }

// relay runs a relay with the handlers until the test's end.
func (db *testDB) relay(t *testing.T, register func(r *handlers.Registry)) {
	t.Helper()
	r := handlers.New()
	register(r)
	relaytest.Run(t, db.DB, r, relay.Config{DrainTimeout: time.Millisecond})
}

// bury writes dead letters with the ids from first on, which died a second after each other, an
// hour ago.
func (db *testDB) bury(t testing.TB, taskType, text string, first, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error)
		SELECT i, now() - interval '2 hours', now() - interval '3 hours', now() - interval '90 minutes', now() - interval '1 hour' + (i - $3::int) * interval '1 ms',
		       3, 5, 5, 'attempts', $1, '{"secret": "C4n4ry"}', '{"trace": "x"}', $2
		  FROM generate_series($3::int, $3::int + $4::int - 1) i`, taskType, text, first, n)
}

// schedule writes a schedule that fires daily.
func (db *testDB) schedule(t testing.TB, name string) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition, next_at)
		VALUES ($1, 'REPORT', '{}', '@daily', 'x', 'x', now() + interval '1 day')`, name)
}

// audited is the audit as lines of action, target and count, the oldest first.
func (db *testDB) audited(t testing.TB) string {
	t.Helper()
	text := db.Text(t, `SELECT string_agg(action || ' ' || target || ' ' || count, E'\n' ORDER BY entry_id) FROM outbox.audit`)
	return regexp.MustCompile(`(died before) \S+Z`).ReplaceAllString(text, "$1 then")
}

type result struct {
	code     int
	out, err string
}

// environment is that of the command: nothing of the tests' own.
func environment(url string, more ...string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TZ=UTC", "TERM=xterm"}
	if url != "" {
		env = append(env, "OUTBOX_DATABASE_URL="+url)
	}
	return append(env, more...)
}

func command(t testing.TB, env []string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, binary, args...)
	c.Env = env
	return c
}

func finish(t testing.TB, c *exec.Cmd) result {
	t.Helper()
	return <-begin(t, c)
}

// begin starts the command; its result comes when it has ended.
func begin(t testing.TB, c *exec.Cmd) <-chan result {
	t.Helper()
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan result, 1)
	go func() {
		_ = c.Wait() // the exit code says it
		done <- result{c.ProcessState.ExitCode(), out.String(), stderr.String()}
	}()
	return done
}

// run runs the command on the database.
func (db *testDB) run(t testing.TB, args ...string) result {
	t.Helper()
	return finish(t, command(t, environment(db.URL), args...))
}

// ok is run for what must succeed; it returns what was printed.
func (db *testDB) ok(t testing.TB, args ...string) string {
	t.Helper()
	r := db.run(t, args...)
	if r.code != 0 {
		t.Fatalf("outbox %s: exit code %d: %s", strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

// json is ok with -json, decoded into v.
func (db *testDB) json(t testing.TB, v any, args ...string) {
	t.Helper()
	out := db.ok(t, append(args, "-json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("outbox %s: %v in %s", strings.Join(args, " "), err, out)
	}
}

// shape has the names and types of a JSON text, like {a:number b:[string]}, of a list those of its
// first element. With names it leaves out others.
func shape(t testing.TB, text string, names map[string]bool) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	var of func(v any) string
	of = func(v any) string {
		switch v := v.(type) {
		case nil:
			return "null"
		case bool:
			return "bool"
		case float64:
			return "number"
		case string:
			if _, err := time.Parse(time.RFC3339, v); err == nil {
				return "time"
			}
			return "string"
		case []any:
			if len(v) == 0 {
				return "[]"
			}
			return "[" + of(v[0]) + "]"
		case map[string]any:
			parts := []string{}
			for name, value := range v {
				if names == nil || names[name] {
					parts = append(parts, name+":"+of(value))
				}
			}
			slices.Sort(parts)
			return "{" + strings.Join(parts, " ") + "}"
		}
		panic("unreachable")
	}
	return of(v)
}

func eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	relaytest.Eventually(t, 30*time.Second, what, met)
}
