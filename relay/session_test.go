package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// stateSQL is what a handler sees of its session.
const stateSQL = `SELECT json_build_array(session_user, current_user, current_setting('role'),
	NULLIF(current_setting('app.tenant', true), ''),
  (SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings WHERE source IN ('session', 'client')
  AND name NOT LIKE 'transaction%'),
  (SELECT json_agg(relname) FROM pg_class WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema()
  AND relkind = 'r'),
  (SELECT json_agg(c) FROM pg_listening_channels() c), (SELECT json_agg(name) FROM pg_prepared_statements
  WHERE from_sql),
  (SELECT json_agg(name) FROM pg_cursors WHERE is_holdable), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
  AND pid = pg_backend_pid())), pg_backend_pid()`

var disturbances = []string{
	`SELECT 1`,
	`SET search_path = pg_temp`,
	`SET ROLE pg_monitor`,
	`SET SESSION AUTHORIZATION pg_monitor`,
	`SET client_encoding = 'LATIN1'`,
	`SET TimeZone = 'Asia/Tokyo'`,
	`SET DateStyle = 'SQL, DMY'`,
	`SET statement_timeout = '1min'; SET lock_timeout = '1min'; SET idle_in_transaction_session_timeout = '1min'`,
	`SET default_transaction_read_only = on`,
	`SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, DEFERRABLE`,
	`SET work_mem = '1MB'`,
	`SELECT set_config('app.tenant', 'one', false)`,
	`SELECT pg_advisory_lock(4711)`,
	`LISTEN heard`,
	`PREPARE p AS SELECT 1`,
	`DECLARE c CURSOR WITH HOLD FOR SELECT 1`,
	`CREATE TEMPORARY TABLE task (n integer)`,
	`CREATE TEMPORARY TABLE dropped (n integer) ON COMMIT DROP; INSERT INTO dropped VALUES (1)`,
}

func TestATaskSeesItsSessionAsThePoolMadeIt(t *testing.T) {
	t.Parallel()
	const made = `SET search_path = app, public; SET TimeZone = 'Asia/Kolkata'; SET statement_timeout = '2min';
		CREATE TEMPORARY TABLE made (n integer); LISTEN made; SET ROLE pg_signal_backend`
	for _, driver := range drivers {
		for _, kind := range []string{"tx", "tx that fails", "batch", "complete"} {
			t.Run(driver+" "+kind, func(t *testing.T) { t.Parallel(); seesItsSession(t, driver, kind, "") })
		}
		t.Run(driver+" with a connector that makes it",
			func(t *testing.T) { t.Parallel(); seesItsSession(t, driver, "tx", made) })
	}
}

// seesItsSession runs a relay with one worker, and compares what tasks see after each disturbance.
func seesItsSession(t *testing.T, driver, kind, made string) {
	db := newDatabase(t, driver)
	db.Do(t, `GRANT ALL ON SCHEMA outbox TO pg_signal_backend; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO pg_signal_backend;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO pg_signal_backend`)
	pool := sql.OpenDB(making{connector(t, driver, db.URL), made})
	t.Cleanup(func() { pool.Close() })
	reg := handlers.New()
	name, _, fails := strings.Cut(kind, " ")
	relaytest.Register(reg, name, "DISTURBS", 10,
		func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			err := execs(nil, disturbances[tasks[0].Payload.N])(ctx, tx)
			if fails {
				return handlers.Dead(errors.Join(errAlways, err))
			}
			return err
		}, handlers.Retention(time.Hour))
	type witnessed struct {
		state        string
		pid, attempt int
	}
	seen := make(chan witnessed, 100)
	relaytest.Register(reg, "tx", "WITNESS", 1,
		func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			w := witnessed{attempt: tasks[0].Attempt}
			err := tx.QueryRowContext(ctx, stateSQL).Scan(&w.state, &w.pid)
			if err == nil {
				seen <- w
			}
			return err
		}, retrySoon())
	relaytest.Run(t, pool, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	var first witnessed
	together := 0
	for i, disturbance := range disturbances {
		if made != "" && strings.Contains(disturbance, "TEMPORARY") {
			break // temporary tables stay where the connector has made one
		}
		db.Do(t, `INSERT INTO outbox.task (task_type, priority, payload)
			VALUES ('DISTURBS', 0, $1), ('WITNESS', 1, DEFAULT), ('WITNESS', 1, DEFAULT)`,
			fmt.Sprintf(`{"N": %d, "text": "Straße"}`, i))
		for range 2 {
			w := <-seen
			if first.pid == 0 {
				first = w
			}
			if w.state != first.state || w.attempt != 1 {
				t.Errorf("after %s: attempt %d in\n%s\nwant\n%s", disturbance, w.attempt, w.state, first.state)
			}
			if w.pid == first.pid {
				together++
			}
		}
		db.Emptied(t, 30*time.Second)
	}
	if together < 2 {
		t.Error("no two tasks had the same connection")
	}
	if want := strings.Count(made, "made"); strings.Count(first.state, "made") != want { // its table and its channel
		t.Errorf("the first task saw %s", first.state)
	}
}

// making is a connector that makes its sessions by a statement.
type making struct {
	driver.Connector
	made string
}

func (m making) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := m.Connector.Connect(ctx)
	if err == nil && m.made != "" {
		_, err = conn.(driver.ExecerContext).ExecContext(ctx, m.made, nil)
	}
	return conn, err
}

func connector(t *testing.T, name, url string) driver.Connector {
	t.Helper()
	if name == "pgx" {
		config, err := pgx.ParseConfig(url)
		noErr(t, err)
		return stdlib.GetConnector(*config)
	}
	c, err := pq.NewConnector(url)
	noErr(t, err)
	return c
}

var (
	aComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	aText    = regexp.MustCompile(`'(?:[^']|'')*'`)
	aNumber  = regexp.MustCompile(`\b[0-9]+\b`)
	oneOf    = regexp.MustCompile(`(?s)(?:'(?:[^']|'')*'|[^;'])+`)
	hasPlan  = regexp.MustCompile(`(?i)^(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)
)

// entries are the statements of a message as pg_stat_statements tells them apart: before PostgreSQL 17
// it replaces constants only where there is a plan.
func entries(message string) (out []string) {
	for _, one := range oneOf.FindAllString(message, -1) {
		one = strings.TrimSpace(aComment.ReplaceAllString(one, ""))
		if hasPlan.MatchString(one) {
			one = aNumber.ReplaceAllString(aText.ReplaceAllString(one, "?"), "?")
		}
		if one != "" {
			out = append(out, one)
		}
	}
	return out
}

// What the relay sends has few texts, whatever tasks it runs: others' statements keep their place in
// pg_stat_statements.
func TestManyTasksOfEachKindTakeFewStatementTexts(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	var mu sync.Mutex
	seen := map[string]bool{}
	f := &faulty{sent: func(text string) {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range entries(text) {
			seen[one] = true
		}
	}}
	pool := db.through(t, func(c driver.Connector) driver.Connector { return f.wrap(c) })
	const each = 150
	errFirst := errors.New("the first attempt")
	act := func(fails bool) relaytest.Handle[payload] {
		return func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			some := handlers.BatchResult{}
			for _, task := range tasks {
				if fails && task.Attempt == 1 && task.Payload.N%2 == 0 {
					some[task.ID] = errFirst
				}
			}
			switch {
			case len(some) == 0:
				return nil
			case tasks[0].Type == "BATCH":
				return some
			}
			return errFirst
		}
	}
	reg := handlers.New()
	kinds := []struct {
		name, kind string
		fails      bool
		opts       []handlers.Option
	}{
		{name: "TX", kind: "tx"},
		{name: "TX_FAILS", kind: "tx", fails: true},
		{name: "KEPT", kind: "tx", opts: []handlers.Option{handlers.Retention(time.Hour)}},
		{name: "BATCH", kind: "batch", fails: true},
		{name: "GROUP", kind: "tx", fails: true, opts: []handlers.Option{handlers.GroupCommit(10, 0)}},
		{name: "LIMITED", kind: "tx", opts: []handlers.Option{handlers.MaxRunning(2)}},
		{name: "LEASED", kind: "leased", fails: true},
		{name: "COMPLETE", kind: "complete", fails: true},
	}
	for _, k := range kinds {
		relaytest.Register(reg, k.kind, k.name, 4, act(k.fails), append(k.opts, retrySoon())...)
		// Each task has a timeout of its own.
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, timeout_ms) SELECT $1, jsonb_build_object('n', n), 20000 + n
			FROM generate_series(1, $2::int) n`, k.name, each)
	}
	canceled := make(chan int64)
	relaytest.Register(reg,
		"tx", "CANCELED", 1, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			canceled <- tasks[0].ID
			<-ctx.Done()
			return ctx.Err()
		})
	db.Enqueue(t, "CANCELED", 1)
	run(t, pool, reg, relay.Config{Workers: 8, PollInterval: 50 * time.Millisecond})
	db.cancel(t, int(<-canceled))
	db.Emptied(t, time.Minute)
	mu.Lock()
	defer mu.Unlock()
	if n := len(seen); n > each {
		texts := slices.Sorted(maps.Keys(seen))
		for i, one := range texts {
			texts[i] = one[:min(len(one), 120)]
		}
		t.Errorf("%d texts of statements for %d tasks of each of %d kinds, want %d at most:\n%s", n, each, len(kinds), each,
			strings.Join(texts[:min(n, 60)], "\n"))
	}
	db.Do(t, `TRUNCATE outbox.done_task`)
}

// inTheLog finds the entries of the server's log that an operator would look into.
var inTheLog = regexp.MustCompile(`(?m)^.*(?:WARNING|ERROR|FATAL|PANIC):.*(?:\n.*(?:DETAIL|HINT|CONTEXT|STATEMENT):.*|\n\t.*)*`)

// Processes start, migrate, enqueue on whatever they have, run tasks and stop.
func TestNormalWorkLeavesNoErrorInTheServersLog(t *testing.T) {
	needs.CI(t)
	server := pgtest.Local(t, map[string]string{"log_min_messages": "warning", "log_min_error_statement": "warning"})
	first := direct(t, server.URL())
	file := filepath.Join(filepath.Dir(first.Text(t, `SHOW data_directory`)), "log")
	before, err := os.ReadFile(file) // of the server's start
	noErr(t, err)
	var replicas sync.WaitGroup
	for range 4 { // replicas of the first deploy
		replica := direct(t, server.URL())
		replicas.Go(func() {
			patient := schema.LockTimeout(time.Minute) // a busy machine takes more than the default for a version
			if err := errors.Join(schema.Migrate(t.Context(), replica.DB, patient),
				schema.GrantRoles(t.Context(), replica.DB, patient)); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	db := adopt(t, server.URL())
	for _, driver := range drivers {
		pool := direct(t, server.URL(), driver)
		running := run(t, pool, all(), relay.Config{ListenDSN: server.URL()})
		for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
			db.Enqueue(t, taskType, 20)
		}
		conn, err := pool.Conn(t.Context())
		noErr(t, err)
		if _, err := outbox.Enqueue(t.Context(), conn, "NONE", 1); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("got %v, want ErrNoTransaction", err)
		}
		for _, statement := range []string{"BEGIN", "", "ROLLBACK"} {
			if statement == "" {
				_, err = outbox.Enqueue(t.Context(), conn, "NONE", 1, outbox.Unique("k"))
			} else {
				_, err = conn.ExecContext(t.Context(), statement)
			}
			noErr(t, err)
		}
		noErr(t, conn.Close())
		again := outbox.InTx(t.Context(), pool.DB, func(tx *sql.Tx) error {
			for range 2 {
				if _, err := outbox.Enqueue(t.Context(), tx, "TX", relaytest.Payload{}, outbox.Unique("once")); err != nil {
					return err
				}
			}
			_, err := outbox.Stats(t.Context(), tx)
			return err
		})
		if again != nil {
			t.Error(again)
		}
		db.Emptied(t, 0)
		if _, err := doctor.Check(t.Context(), pool.DB); err != nil {
			t.Error(err)
		}
		running.Stop()
	}
	log, err := os.ReadFile(file)
	noErr(t, err)
	for _, found := range inTheLog.FindAllString(string(log[len(before):]), -1) {
		t.Errorf("in the server's log:\n%s", strings.TrimSpace(found))
	}
}
