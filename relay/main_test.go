package relay_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(childEnv); config != "" {
		os.Exit(child(config))
	}
	os.Exit(pgtest.Main(m))
}

// database is a migrated database of the test's own, with the tables that the tests' handlers write to. At the end
// of the test its invariants are checked.
type database struct {
	*sql.DB
	url string
}

func newDatabase(t testing.TB) *database {
	t.Helper()
	return openDatabase(t, pgtest.Database(t))
}

func openDatabase(t testing.TB, url string) *database {
	t.Helper()
	db := open(t, url)
	if err := schema.Migrate(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `CREATE TABLE effect (task_id bigint NOT NULL, attempt int, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	t.Cleanup(func() { db.invariants(t) })
	return db
}

// driverName is the database/sql driver that the tests use: OUTBOX_TEST_DRIVER is postgres (lib/pq, the default) or pgx.
func driverName() string {
	if name := os.Getenv("OUTBOX_TEST_DRIVER"); name != "" {
		return name
	}
	return "postgres"
}

func open(t testing.TB, url string) *database {
	t.Helper()
	db, err := sql.Open(driverName(), url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { db.Close() })
	return &database{db, url}
}

func (db *database) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := db.DB.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func (db *database) int(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (db *database) text(t testing.TB, query string, args ...any) string {
	t.Helper()
	var s sql.NullString
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s.String
}

// invariants are those of docs/design.md that can be read from the tables.
func (db *database) invariants(t testing.TB) {
	t.Helper()
	for name, query := range map[string]string{
		"I1: a task is in task and in dead_task": `SELECT count(*) FROM outbox.task JOIN outbox.dead_task USING (task_id)`,
		"I5: a dead task has attempts left":      `SELECT count(*) FROM outbox.dead_task WHERE reason = 'attempts' AND attempt <> max_attempts`,
		"a run without a task is in the journal, and its relay has signed off": `SELECT count(*) FROM outbox.running r WHERE NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = r.task_id)
			AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = r.relay_id)`,
	} {
		if n := db.int(t, query); n != 0 {
			t.Errorf("%s: %d times", name, n)
		}
	}
}

// records keeps what a relay logged.
type records struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *records) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

func (r *records) count(text string) int { return strings.Count(r.String(), text) }

// running is a relay at work for a test.
type running struct {
	*relay.Relay
	log  *records
	stop func() // drains; called at the end of the test in any case
}

// run starts a relay, which is drained at the end of the test.
func run(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) *running {
	t.Helper()
	r := &running{log: &records{}}
	config.Logger = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if r.Relay, err = relay.New(db.DB, reg, config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(60 * time.Second):
			t.Error("Run did not return within 60 s of its context's end")
		}
		if t.Failed() {
			t.Logf("log of the relay:\n%s", tail(r.log.String()))
		}
	})
	t.Cleanup(r.stop)
	return r
}

// once runs what is due.
func once(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) string {
	t.Helper()
	log := &records{}
	config.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r, err := relay.New(db.DB, reg, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RunOnce(t.Context()); err != nil {
		t.Fatalf("RunOnce: %v", err)
	}
	return log.String()
}

func tail(s string) string { return s[max(0, len(s)-8000):] }

// eventually polls until ok, and fails the test when it has not become so in time.
func eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func (db *database) emptied(t testing.TB, within time.Duration) {
	t.Helper()
	eventually(t, within, "all tasks are done", func() bool { return db.int(t, `SELECT count(*) FROM outbox.task`) == 0 })
}

func (db *database) enqueue(t testing.TB, taskType string, n int) {
	t.Helper()
	db.exec(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, jsonb_build_object('n', n) FROM generate_series(1, $2::int) n`, taskType, n)
}

func (db *database) dump(t testing.TB) string {
	return fmt.Sprintf("task %s\ndead %s\nrunning %s",
		db.text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.task LIMIT 10) t`),
		db.text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.dead_task LIMIT 10) t`),
		db.text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.running LIMIT 10) t`))
}
