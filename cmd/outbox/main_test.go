package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
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

// slow is a type whose tasks run until their relay stops.
const slow = "A_VERY_LONG_NAME_OF_A_TYPE_THAT_IS_SLOW_AND_WIDER_THAN_ANY_COLUMN"

// relay runs a relay for MAIL and slow until the test's end, and returns its id.
func (db *testDB) relay(t *testing.T) (id string) {
	t.Helper()
	r := handlers.New()
	handlers.Leased(r, outbox.NewTaskType[any]("MAIL"), func(context.Context, *outbox.Task[any]) error { return nil })
	handlers.Leased(r, outbox.NewTaskType[any](slow), func(ctx context.Context, _ *outbox.Task[any]) error {
		<-ctx.Done()
		return ctx.Err()
	})
	relaytest.Run(t, db.DB, r, relay.Config{DrainTimeout: time.Millisecond})
	eventually(t, "a relay is alive", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 1 })
	return db.Text(t, `SELECT relay_id FROM outbox.relay`)
}

// bury writes dead letters with the ids from first on, which died a second after each other, an
// hour ago.
func (db *testDB) bury(t testing.TB, taskType, text string, first, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt,
		       max_attempts, reason, task_type, payload, headers, last_error)
		SELECT i, now() - interval '2 hours', now() - interval '3 hours', now() - interval '90 minutes',
		       now() - interval '1 hour' + (i - $3::int) * interval '1 ms',
		       3, 5, 5, 'attempts', $1, '{"secret": "C4n4ry"}', '{"trace": "x"}', $2
		  FROM generate_series($3::int, $3::int + $4::int - 1) i`, taskType, text, first, n)
}

// schedule writes a schedule that fires daily.
// finish writes n finished tasks of a type, with ids from first on, which their payloads have, too.
func (db *testDB) finish(t testing.TB, taskType string, first, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority,
		attempt, task_type, payload)
		SELECT i, now(), now(), now(), now() - interval '1 hour', now() + interval '1 hour', 0, 1, $1,
		       jsonb_build_object('user_id', i)
		  FROM generate_series($2::int, $2::int + $3::int - 1) i`, taskType, first, n)
}

func (db *testDB) schedule(t testing.TB, name string) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.schedule (name, task_type, payload, spec, timing, definition, next_at)
		VALUES ($1, 'REPORT', '{}', '@daily', 'x', 'x', now() + interval '1 day')`, name)
}

// audited is the audit as lines of action, target and count, the oldest first.
func (db *testDB) audited(t testing.TB) string {
	t.Helper()
	text := db.Text(t, `SELECT string_agg(concat_ws(' ', action, target, count), E'\n' ORDER BY entry_id) FROM outbox.audit`)
	return regexp.MustCompile(`(before|to) \S+Z`).ReplaceAllString(text, "$1 then")
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

// finish runs a command to its end.
func finish(t testing.TB, c *exec.Cmd) result {
	t.Helper()
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), stderr.String()}
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

func eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	relaytest.Eventually(t, 30*time.Second, what, met)
}

// step is a command line, its exit code, and a text that it prints to stdout or stderr.
type step struct {
	args string
	code int
	want string
}

func (db *testDB) steps(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		if r := db.run(t, strings.Fields(s.args)...); r.code != s.code || !strings.Contains(r.out+r.err, s.want) {
			t.Errorf("%s: got %+v, want exit code %d and %q", s.args, r, s.code, s.want)
		}
	}
}

// is fails unless a query's result is the text.
func (db *testDB) is(t testing.TB, query, want string) {
	t.Helper()
	if got := db.Text(t, query); got != want {
		t.Errorf("%s:\n got %s\nwant %s", query, got, want)
	}
}

// wantAudit fails unless the audit ends with these lines.
func (db *testDB) wantAudit(t *testing.T, lines ...string) {
	t.Helper()
	if got, want := db.audited(t), strings.Join(lines, "\n"); !strings.HasSuffix(got, want) {
		t.Errorf("the audit has\n%s\nwant at its end\n%s", got, want)
	}
}

// session is the command on a terminal.
type session struct {
	cmd  *exec.Cmd
	tty  *os.File
	mu   sync.Mutex
	seen bytes.Buffer
	read chan struct{} // closed at the end of the output
}

// terminal starts the command on a terminal of 80 columns.
func (db *testDB) terminal(t *testing.T, args ...string) *session {
	t.Helper()
	return onTerminal(t, command(t, environment(db.URL), args...))
}

func onTerminal(t *testing.T, c *exec.Cmd) *session {
	t.Helper()
	tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{cmd: c, tty: tty, read: make(chan struct{})}
	go func() {
		defer close(s.read)
		for b := make([]byte, 4096); ; {
			n, err := tty.Read(b)
			s.mu.Lock()
			s.seen.Write(b[:n])
			s.mu.Unlock()
			if err != nil { // EIO: the command has ended
				return
			}
		}
	}()
	t.Cleanup(func() { tty.Close() })
	return s
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

func (s *session) shows(t *testing.T, text string) {
	t.Helper()
	eventually(t, text+" is shown", func() bool { return strings.Contains(s.text(), text) })
}

func (s *session) types(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		t.Fatal(err)
	}
}

// end waits for the command's end and returns its exit code.
func (s *session) end(t *testing.T) int {
	t.Helper()
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	<-s.read
	return s.cmd.ProcessState.ExitCode()
}
