// Package schema holds the outbox's database schema as SQL files, and applies them: numbered
// migrations, which make and change tables, and the functions, views and triggers as they are now.
//
// [Migrate] is made for the start of an app: call it from every process, as often as you like. For
// psql and tools for migrations [FS] has the same files, for goose as
//
//	goose.NewProvider(goose.DialectPostgres, db, schema.FS(), goose.WithTableName("goose_outbox_version"))
//
// with a table of versions of their own, as the app's numbers are its own; examples/migrate has
// them for golang-migrate. [SQL] is one script, also for a schema of another name. Files that a tool
// applied and those that Migrate applied are the same to [Migrate] and [Check]. There is no way back
// down: a newer version adds to what is there.
package schema

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/writable"
)

// Migrate brings the schema to [Version], creating it if it is missing. When there is nothing to do
// it only reads, so a role without the right to create passes. Otherwise one transaction applies the
// missing migrations, and then the functions, views and triggers of this code if others are there,
// under a lock on the table of versions. Any number of processes may call it at once: one does the
// work, the others find it done.
//
// The role must be allowed to read the table of versions and, when there is something to do, own
// the outbox's tables; creating the schema takes CREATE on the database. The role that created them
// is their owner. After [GrantRoles] that is the role <schema>_owner: its members migrate in its
// name, and what a version adds is its own.
//
// Where a newer version of this module has migrated the schema it does nothing: each migration says
// the oldest code that may run beside it. Such a process starts and works, so a replica may restart
// in the middle of a deploy, and a deploy may be rolled back. Older code gets ErrNewer.
//
// It tries again, with jittered pauses, for a minute: where another transaction is in the way, when
// it is disturbed by others who migrate, and when the server is starting, stopping, full or refuses
// connections, or the connection breaks. After a commit of unknown outcome it looks whether the
// work is done. All else is returned at once. A statement that runs is not cut short after the
// minute, only when ctx ends.
//
// Errors: ErrUnsupportedServer, ErrUnsupportedEncoding, ErrStatementPooling, ErrRowSecurity,
// ErrNewer, ErrNotMigrated for a schema from before the first release, one of newer code that was
// renamed, or one with objects of the outbox's names that are not its own, and, when there is
// something to do, ErrReadOnly or that the server is a standby, with nothing written; bad options
// before any SQL; else the server's, or ctx's with the latest of the server's. It returns at most
// 10 s after ctx has ended, even if the server does not answer. After any error it may be called
// again.
func Migrate(ctx context.Context, db *sql.DB, opts ...Option) error {
	s, err := newSettings(opts)
	if err != nil {
		return err
	}
	if db == nil {
		return errors.New("schema: Migrate: the *sql.DB is nil")
	}
	return s.repeat(ctx, "migrate", func(ctx context.Context) (finished bool, err error) {
		finished, err = s.step(ctx, db)
		return finished, explainBegin(ctx, db, err)
	})
}

// has reports whether nothing is missing in a schema: newer code has migrated it, or this code.
func (s *settings) has(f found) bool {
	return f.Version > s.newest() || f.Version == s.newest() && f.present == s.present.hashes(s.name)
}

// step applies what is missing, or reports that nothing is.
func (s *settings) step(ctx context.Context, db *sql.DB) (finished bool, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", pgerr.WithoutDSN(err))
	}
	defer func() { _ = conn.Close() }() // back to the pool
	err = s.inTx(ctx, conn, true, func(tx *sql.Tx) error {
		f, err := inspect(ctx, tx, s.name, s.newest())
		if finished = s.has(f); err != nil || finished {
			return err
		}
		if !f.table {
			if err := s.checkForeign(ctx, tx); err != nil {
				return err
			}
		}
		return writable.Check(ctx, tx)
	})
	if err != nil || finished {
		return finished, err
	}
	err = s.inTx(ctx, conn, false, func(tx *sql.Tx) error { return s.apply(ctx, tx) })
	return err == nil, err
}

// Servers before PostgreSQL 17 do not have the setting.
const untimed = `SELECT CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
  THEN set_config('transaction_timeout', '0', true) END`

// inTx runs fn in a transaction. The lock timeout bounds its waits; how long the work itself takes
// is for ctx to say, not for the role's statement_timeout or, from PostgreSQL 17 on,
// transaction_timeout.
func (s *settings) inTx(ctx context.Context, conn *sql.Conn, readOnly bool, fn func(*sql.Tx) error) error {
	// database/sql would roll back at any time after ctx ends, even while COMMIT is under way.
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: readOnly})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	// Statements without parameters can travel together.
	set := fmt.Sprintf("SET LOCAL lock_timeout = %d; SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog, pg_temp; %s",
		s.lockTimeout.Milliseconds(), untimed)
	if _, err := tx.ExecContext(ctx, set); err != nil {
		return fmt.Errorf("set lock_timeout: %w", err)
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// createOnce makes the table of versions as the first migration does, so that there is something to
// lock before it, unless another process does at the same time. It waits for the other process's
// commit, and then meets a duplicate, without an error in the server's log.
func createOnce() string {
	_, table, _ := strings.Cut(migrations()[0], "CREATE TABLE IF NOT EXISTS outbox.migration (")
	table, _, _ = strings.Cut(table, "\n);\n")
	return `-- schema: create the table of versions once
DO $create$
BEGIN
  IF to_regnamespace('outbox') IS NULL THEN
    CREATE SCHEMA outbox;
  END IF;
  CREATE TABLE IF NOT EXISTS outbox.migration (` + table + `);
EXCEPTION WHEN duplicate_schema OR duplicate_table OR duplicate_object OR unique_violation THEN
END
$create$`
}

// What a member of the owner makes would be its own, and out of the reach of functions that have
// the owner's rights.
// The roles have the name that the schema had then.
const becomeOwner = `-- schema: work as the owner, if GrantRoles made one
DO $$
DECLARE
  owner CONSTANT text := pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox.migration'::regclass;
BEGIN
  IF owner LIKE '%\_owner' AND to_regrole(quote_ident(regexp_replace(owner, '_owner$', '_enqueuer'))) IS NOT NULL THEN
    EXECUTE format('SET LOCAL ROLE %I', owner);
  END IF;
END
$$`

const ownership = "to own the outbox's schema and tables"

// apply writes all that is missing on tx, unless another process was faster.
func (s *settings) apply(ctx context.Context, tx *sql.Tx) error {
	f, err := readServer(ctx, tx, s.name)
	if err != nil {
		return err
	}
	if !f.table {
		if _, err := tx.ExecContext(ctx, rename(createOnce(), s.name)); err != nil {
			return fmt.Errorf("create %s.migration: %w", s.name,
				needs("CREATE on the database, or on the schema where that exists", err))
		}
	}
	// EXCLUSIVE lets others read, so processes that are up to date do not wait. Nothing is read before
	// it: two processes that have read the table, and wait for the lock, would block its ALTER TABLE.
	lock := "LOCK TABLE " + quote(s.name) + ".migration IN EXCLUSIVE MODE;\n" + rename(becomeOwner, s.name)
	if _, err := tx.ExecContext(ctx, lock); err != nil {
		return fmt.Errorf("lock %s.migration: %w", s.name, needs(ownership, err))
	}
	if err := f.readVersion(ctx, tx, s.name, s.newest()); err != nil || s.has(f) {
		return err
	}
	for version := f.Version + 1; version <= s.newest(); version++ {
		if _, err := tx.ExecContext(ctx, rename(s.files[version-1], s.name)); err != nil {
			return fmt.Errorf("apply version %d: %w", version, needs(ownership, err))
		}
	}
	if _, err := tx.ExecContext(ctx, s.present.script(s.name, f.present)); err != nil {
		return fmt.Errorf("apply the functions of version %d: %w", s.newest(), needs(ownership, err))
	}
	return nil
}

// repeat does step until it has finished, and again where that may help. It returns in any case
// some time after ctx has ended: a driver may wait for a dead peer beyond its context, and Commit
// has none. Then the goroutine is left behind until the connection fails.
func (s *settings) repeat(ctx context.Context, what string, step func(context.Context) (finished bool, err error)) error {
	done := make(chan error, 1)
	go func() { done <- s.tries(ctx, what, step) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(s.grace)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("schema: %s %s: the server does not answer: %w", what, s.name, context.Cause(ctx))
	}
}

func (s *settings) tries(ctx context.Context, what string, step func(context.Context) (finished bool, err error)) error {
	var latest error
	try := func(ctx context.Context) error {
		for {
			finished, err := step(ctx)
			if err == nil && !finished {
				continue
			}
			if latest = err; again(err) {
				return retry.RetryableError(err)
			}
			return err
		}
	}
	pause := retry.WithJitterPercent(50, retry.WithCappedDuration(500*time.Millisecond, retry.NewExponential(20*time.Millisecond)))
	where := "schema: " + what + " " + s.name
	err := retry.Do(ctx, retry.WithMaxDuration(s.patience, pause), try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && latest != nil && !errors.Is(latest, context.Cause(ctx)):
		return pgerr.Within(where, fmt.Errorf("%w; the latest try: %w", context.Cause(ctx), latest))
	case again(err):
		return pgerr.Within(where, fmt.Errorf("gave up after %v: %w", s.patience, err))
	}
	return pgerr.Within(where, err)
}

// again reports whether err may be gone at the next try.
func again(err error) bool {
	if errors.Is(err, ErrStatementPooling) { // it wraps the driver's error
		return false
	}
	switch pgerr.Code(err) {
	case "":
	case "55P03", "40P01", "40001": // lock not available, deadlock, serialization failure
		return true
	case "23505", "42P06", "42P07", "42710", "42723": // two create the same: unique key, schema, table, object, function
		return true
	case "XX000": // "tuple concurrently updated", in the server's language
		return true
	case "57P01", "57P02", "57P03", "53300", "08000", "08003", "08006": // stopping, crashed, starting, full, connection lost
		return true
	default:
		return false
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return false // more likely a wrong name than a name server's bad day
	}
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// explainBegin adds to an error of BEGIN that the pooler has no transactions. PgBouncer in statement
// mode says so and ends the connection. lib/pq returns driver.ErrBadConn instead of such an error:
// then each BEGIN on p fails, and each single statement passes. It holds no connection of p.
func explainBegin(ctx context.Context, p pool, err error) error {
	said := pgerr.Code(err) == "08P01" && strings.Contains(err.Error(), "statement pooling mode")
	if said || errors.Is(err, driver.ErrBadConn) && pings(ctx, p) && noBegin(ctx, p) && pings(ctx, p) {
		return fmt.Errorf("%w (%w)", ErrStatementPooling, err)
	}
	return err
}

func pings(ctx context.Context, p pool) bool { return p.PingContext(ctx) == nil }

// noBegin reports whether the connection ends at BEGIN. database/sql tries it three times, the last
// time on a new connection.
func noBegin(ctx context.Context, p pool) bool {
	tx, err := p.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		_ = tx.Rollback()
	}
	return errors.Is(err, driver.ErrBadConn)
}

// What [Check] and [Migrate] find wrong. The error that wraps one of these says what was found.
var (
	// ErrNotMigrated: the schema or its migration table is missing, or older than this code; the
	// schema was renamed since; or objects that are not the outbox's have its names.
	ErrNotMigrated = errors.New("schema: the outbox is not migrated")
	// ErrNewer: a newer version of this module migrated the schema, and this code may not run beside
	// it.
	ErrNewer = errors.New("schema: the outbox is newer than this code")
	// ErrUnsupportedServer: the server is older than PostgreSQL 14.
	ErrUnsupportedServer = errors.New("schema: unsupported server")
	// ErrUnsupportedEncoding: the database's encoding is not UTF8.
	ErrUnsupportedEncoding = errors.New("schema: unsupported encoding")
	// ErrStatementPooling: no transaction is possible, as a pooler gives each statement a connection
	// of its own.
	ErrStatementPooling = errors.New("schema: each BEGIN ends the connection, as PgBouncer does in statement mode: " +
		"set pool_mode to transaction or session for this database and user, or connect to PostgreSQL itself")
	// ErrReadOnly: the setting default_transaction_read_only is on.
	ErrReadOnly = writable.ErrReadOnly
	// ErrRowSecurity: row level security hides rows of the outbox from the role.
	ErrRowSecurity = errors.New("schema: rows are hidden")
)

// needs adds to the server's permission error what the role needs; other errors stay as they are.
func needs(what string, err error) error {
	if pgerr.Code(err) == "42501" { // insufficient_privilege
		return fmt.Errorf("%w (the role needs %s)", err, what)
	}
	return err
}
