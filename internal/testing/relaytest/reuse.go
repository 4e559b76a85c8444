package relaytest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// A new database and the first statements of its sessions cost more CPU than most tests. So a test
// that passed leaves its database and its pool to the next one: without rows, without what it made
// in the schema public, and with the sessions' settings reset. A database in which anything else has
// changed is dropped.
const (
	keptSessions = 6       // of each pool
	mostBytes    = 1 << 19 // of a table or an index; the next test would work beside its dead rows
)

var unused struct {
	mu    sync.Mutex
	pools []*reusable
}

type reusable struct {
	*Database
	driver string
	made   madeAs // each has a mark of its own, which is a type
	drop   func() // the pool's end, too
}

// reuse returns a database that no test uses now, or a new one.
func reuse(t testing.TB, driver string) *Database {
	t.Helper()
	unused.mu.Lock()
	var d *reusable
	for i, last := range slices.Backward(unused.pools) {
		if last.driver == driver {
			d, unused.pools = last, slices.Delete(unused.pools, i, i+1)
			break
		}
	}
	unused.mu.Unlock()
	if d == nil {
		d = create(t, driver)
	}
	d.SetMaxIdleConns(20)
	t.Cleanup(func() {
		d.Invariants(t)
		d.Idle(t)
		if t.Failed() || d.reset() != nil {
			d.drop()
			return
		}
		unused.mu.Lock()
		defer unused.mu.Unlock()
		unused.pools = append(unused.pools, d)
	})
	return d.Database
}

func create(t testing.TB, driver string) *reusable {
	t.Helper()
	url, drop := pgtest.Kept(t, prepare)
	db, err := pgtest.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	d := &reusable{Database: &Database{db, url}, driver: driver}
	d.own(t)
	d.drop = sync.OnceFunc(func() { db.Close(); drop() })
	pgtest.AtEnd(func() error { d.drop(); return nil })
	if filled := d.Text(t, filledSQL); filled != "" {
		t.Fatalf("a new database has rows in %s: add it to those that are left alone", filled)
	}
	d.made = madeAs{d.Text(t, catalogSQL), d.Text(t, emptySQL)}
	return d
}

// reset makes the database as good as new, or says why it is not.
func (d *reusable) reset() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	d.SetMaxOpenConns(0)
	d.SetMaxIdleConns(keptSessions)
	d.SetConnMaxLifetime(0)
	d.SetConnMaxIdleTime(0)
	var conns []*sql.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range max(1, d.Stats().Idle) {
		c, err := d.Conn(ctx)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		if err := resetSession(ctx, c); err != nil {
			return err
		}
	}
	if err := onlySessions(ctx, conns[0], len(conns)); err != nil {
		return err
	}
	return d.made.restore(ctx, conns[0])
}

// resetSession is DISCARD ALL, except that it keeps plans and the prepared statements of drivers.
func resetSession(ctx context.Context, c *sql.Conn) error {
	for _, statement := range []string{`RESET SESSION AUTHORIZATION`, `RESET ROLE`, `RESET ALL`,
		`UNLISTEN *`, `CLOSE ALL`, `SELECT pg_advisory_unlock_all()`, `DISCARD TEMP`, `DISCARD SEQUENCES`} {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	var prepared int
	const preparedSQL = `SELECT count(*) FROM pg_prepared_statements WHERE from_sql`
	err := c.QueryRowContext(ctx, preparedSQL).Scan(&prepared)
	if err == nil && prepared > 0 {
		err = errors.New("a test's own PREPARE is left")
	}
	return err
}

// onlySessions waits until the database has no sessions but n. A closed session takes a moment to
// end.
func onlySessions(ctx context.Context, c *sql.Conn, n int) error {
	const sessions = `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend'`
	deadline := time.After(time.Second)
	for {
		var now int
		if err := c.QueryRowContext(ctx, sessions).Scan(&now); err != nil || now == n {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			return fmt.Errorf("%d sessions, of which the pool has %d", now, n)
		}
	}
}

// madeAs says what is in a database that no test has used.
type madeAs struct {
	catalog string // a hash
	empty   string // the statement that brings rows and sequences back
}

// catalogSQL hashes what tests change besides rows: tables, functions, triggers, constraints,
// rights, settings, and statistics by ANALYZE. Three tables have rows in a new database.
const catalogSQL = `SELECT md5(concat(
	(SELECT string_agg(concat(oid, xmin, reltuples), ',' ORDER BY oid) FROM pg_class WHERE oid >= 16384),
	(SELECT string_agg(concat(attrelid, attnum, xmin), ',' ORDER BY attrelid, attnum)
		FROM pg_attribute WHERE attrelid >= 16384),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_proc WHERE oid >= 16384),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_type WHERE oid >= 16384),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_operator WHERE oid >= 16384),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_cast),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_trigger),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_constraint WHERE oid >= 16384),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid)
		FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_extension),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_policy),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_publication),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_event_trigger),
	(SELECT string_agg(concat(oid, xmin), ',' ORDER BY oid) FROM pg_default_acl),
	(SELECT concat(datacl, datallowconn, datconnlimit) FROM pg_database
		WHERE datname = current_database()),
	(SELECT string_agg(concat(setrole, setconfig), ',') FROM pg_db_role_setting
		JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()),
	(SELECT string_agg(concat(m.*), ',' ORDER BY version) FROM outbox.migration m),
	(SELECT string_agg(concat(l.*), ',') FROM outbox.promote_lock l),
	(SELECT string_agg(concat(environment, refused), ',') FROM outbox.origin_state(NULL))))`

const emptied = `relkind = 'r' AND oid >= 16384
	AND oid NOT IN ('outbox.migration'::regclass, 'outbox.promote_lock'::regclass, 'outbox.origin'::regclass)`

// filledSQL names the tables that have rows.
const filledSQL = `SELECT string_agg(oid::regclass::text, ' ') FROM pg_class WHERE ` + emptied + `
	AND query_to_xml(format('SELECT FROM %s LIMIT 1', oid::regclass), false, true, '')::text LIKE '%row%'`

// largestSQL returns bytes, those of TOAST tables included.
const largestSQL = `SELECT max(pg_relation_size(oid)) FROM pg_class
	WHERE oid >= 16384 AND relkind IN ('r', 'i', 't')`

// emptySQL returns the statement that empties the tables and sets the sequences back.
const emptySQL = `SELECT format('WITH %s SELECT concat(%s)',
		string_agg(format('d%s AS (DELETE FROM %s)', oid, oid::regclass), ', '),
		(SELECT string_agg(format('setval(%L, %s, %s)', format('%I.%I', schemaname, sequencename),
			COALESCE(last_value, start_value), (last_value IS NOT NULL)::text), ', ') FROM pg_sequences))
	FROM pg_class WHERE ` + emptied

// dropSQL drops what a test made in the schema public, with the triggers and foreign keys that need it.
const dropSQL = `DO $$
DECLARE
  statement text;
BEGIN
  FOR statement IN
    SELECT format('DROP %s IF EXISTS %s CASCADE', CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE'
             ELSE 'TABLE' END, oid::regclass)
      FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'S') AND relname <> 'effect'
    UNION ALL
    SELECT format('DROP ROUTINE IF EXISTS %s CASCADE', oid::regprocedure)
      FROM pg_proc WHERE pronamespace = 'public'::regnamespace
  LOOP
    EXECUTE statement;
  END LOOP;
END
$$`

func (m madeAs) restore(ctx context.Context, c *sql.Conn) error {
	if _, err := c.ExecContext(ctx, dropSQL); err != nil {
		return err
	}
	var catalog string
	if err := c.QueryRowContext(ctx, catalogSQL).Scan(&catalog); err != nil {
		return err
	}
	if catalog != m.catalog {
		return errors.New("the catalog is another one")
	}
	var largest int
	if err := c.QueryRowContext(ctx, largestSQL).Scan(&largest); err != nil {
		return err
	}
	if largest > mostBytes {
		return fmt.Errorf("a table or an index has %d bytes", largest)
	}
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `SET LOCAL session_replication_role = replica`); err != nil { // without triggers
		return err
	}
	if _, err := tx.ExecContext(ctx, m.empty); err != nil {
		return err
	}
	return tx.Commit()
}
