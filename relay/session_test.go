package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
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
		if err != nil {
			t.Fatal(err)
		}
		return stdlib.GetConnector(*config)
	}
	c, err := pq.NewConnector(url)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
