package pg

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Session says how the session of a connection is put back before COMMIT, so that a handler's SET
// does not reach the next handler.
type Session struct {
	Reset   string // the statements, beside those of outbox.end_run
	Restore string // Reset, and the limits of a relay's own statements for the transaction
	Left    bool   // end_run has found a change that no statement undoes: close the connection
}

// sessionSQL returns the statements that put the session back. RESET goes to the values that the
// connection began with: those of its connection string, its role and its database. Settings that
// were made by statements since are made again. The pool's connector makes such settings, and so
// does PgBouncer: behind it a constant RESET ALL loses the TimeZone and the application_name of the
// connection string. PostgreSQL does not list an app's own settings (app.tenant), so they are lost.
// A setting that SET LOCAL hid after RESET ALL has the source session too, with the value that
// RESET gives it. The statement asks functions, as a new session plans the views pg_settings and
// pg_roles for a millisecond. Temporary tables go unless the connector has made one.
const sessionSQL = `/* outbox: see how the pool made a session */
SELECT concat_ws('; ', 'RESET SESSION AUTHORIZATION', 'RESET ROLE', 'RESET ALL', 'CLOSE ALL',
  (SELECT 'DO ' || quote_literal('BEGIN PERFORM '
            || string_agg(format('set_config(%L, %L, false)', name, current_setting(name)), ', ') || '; END')
     FROM pg_show_all_settings()
    WHERE source = 'session' AND setting IS DISTINCT FROM reset_val
      AND name NOT IN ('transaction_isolation', 'transaction_read_only', 'transaction_deferrable')),
  (SELECT 'SET SESSION AUTHORIZATION ' || quote_ident(session_user)
     FROM pg_stat_get_activity(pg_backend_pid()) a WHERE pg_get_userbyid(a.usesysid) <> session_user),
  CASE WHEN current_setting('role') <> 'none' THEN 'SET ROLE ' || quote_ident(current_setting('role')) END,
  'UNLISTEN *', (SELECT string_agg('LISTEN ' || quote_ident(c), '; ') FROM pg_listening_channels() c),
  CASE WHEN NOT EXISTS (SELECT 1 FROM pg_class
                         WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema())
       THEN 'DISCARD TEMP' END)`

// BeginSession is begin for a transaction in which the app's code works.
func (p *Pool) BeginSession(ctx context.Context) (*sql.Conn, *sql.Tx, Session, error) {
	conn, tx, err := p.begin(ctx)
	if err != nil {
		return nil, nil, Session{}, err
	}
	restore, err := p.restoring(ctx, conn, tx)
	if err != nil {
		_ = tx.Rollback()
		Drop(conn)
		return nil, nil, Session{}, err
	}
	if p.guard() != "" { // what the claim needs: claims set the handler's limits, and have their planner's
		if _, err := tx.ExecContext(ctx, p.untimed+unlimited); err != nil {
			_ = tx.Rollback()
			Drop(conn)
			return nil, nil, Session{}, err
		}
	}
	limits := "; SET LOCAL idle_in_transaction_session_timeout = " + Millis(Bookkeeping) +
		"; SET LOCAL statement_timeout = " + Millis(Bookkeeping)
	return conn, tx, Session{Reset: restore, Restore: restore + limits}, nil
}

// restoring returns the statements that put the connection's session back. Each connection is asked
// once, which takes half a millisecond.
func (p *Pool) restoring(ctx context.Context, conn *sql.Conn, tx *sql.Tx) (restore string, err error) {
	if s := p.known(conn); s.restore != "" {
		return s.restore, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), StatementTimeout)
	defer cancel()
	if err := tx.QueryRowContext(ctx, sessionSQL).Scan(&restore); err != nil {
		return "", err
	}
	p.know(conn, func(s *session) { s.restore = restore })
	return restore, nil
}

// A role, a database or the server may have settings that end a relay's own statements too soon, or
// by which PostgreSQL plans them badly and compiles them for seconds. A connection is asked for its
// settings instead of a ping, again after a while: a pooler may give it another session. From then
// on each transaction of the relay's own sets what it needs, and each statement of its own has a
// transaction. Nothing is set for longer: behind a pooler it would reach the sessions of others. A
// handler has the app's settings.

// Querier is a connection, or a transaction.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const askAgain = 30 * time.Second // for a session's settings

// compiledAbove is the default of jit_above_cost. A plan that needs what is turned off costs more.
const compiledAbove = 100_000

var (
	limiting = []string{"statement_timeout", "lock_timeout", "transaction_timeout"}
	planning = []string{"enable_seqscan", "enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan",
		"enable_tidscan", "enable_sort", "enable_nestloop", "enable_hashjoin", "enable_mergejoin", "enable_hashagg",
		"enable_material", "enable_memoize"}

	settingsSQL = "/* outbox: see the settings of a session */ SELECT pg_catalog.concat_ws(',', " +
		"pg_catalog.current_setting('jit'), pg_catalog.current_setting('jit_above_cost'), " +
		asked(limiting) + ", " + asked(planning) + ")"
	// Without a limit: the context of the relay's statements has one. A limit would not replace
	// that under which the message of a driver that sends several statements has begun.
	unlimited = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = " + Millis(Bookkeeping)
	guards    = unlimited + "; SET LOCAL jit = off; SET LOCAL " + strings.Join(planning, " = on; SET LOCAL ") + " = on"
)

func asked(settings []string) string {
	var out []string
	for _, s := range settings {
		out = append(out, "COALESCE(pg_catalog.current_setting('"+s+"', true), '0')")
	}
	return strings.Join(out, ", ")
}

// lives pings a connection, or asks it for its settings.
func (p *Pool) lives(ctx context.Context, conn *sql.Conn) error {
	if time.Since(p.known(conn).asked) < askAgain {
		return conn.PingContext(ctx)
	}
	var text string
	if err := conn.QueryRowContext(ctx, settingsSQL).Scan(&text); err != nil {
		return err
	}
	if hostile(strings.Split(text, ",")) {
		p.guarded.Store(true)
	}
	p.know(conn, func(s *session) { s.asked = time.Now() })
	return nil
}

// hostile judges the values that settingsSQL returns.
func hostile(values []string) bool {
	if len(values) != 2+len(limiting)+len(planning) {
		return true
	}
	above, err := strconv.ParseFloat(values[1], 64)
	compiles := values[0] == "on" && (err != nil || above >= 0 && above < compiledAbove)
	return compiles || slices.ContainsFunc(values[2:2+len(limiting)], short) ||
		slices.Contains(values[2+len(limiting):], "off")
}

// short reports whether a limit, as PostgreSQL shows it, may end a statement of the relay's own.
func short(limit string) bool {
	if limit == "0" {
		return false
	}
	d, err := time.ParseDuration(strings.NewReplacer("min", "m", "d", "h").Replace(limit)) // days count as hours
	return err != nil || d < StatementTimeout
}

// guard is statements that set what a transaction of the relay's own needs, "" where nothing is
// amiss.
func (p *Pool) guard() string {
	if !p.guarded.Load() {
		return ""
	}
	return p.untimed + guards
}

// own is guard with letGo.
func (p *Pool) own() string { return separated(p.guard(), letGo) }

// separated are the statements that are not "".
func separated(statements ...string) string {
	return strings.Join(slices.DeleteFunc(statements, func(s string) bool { return s == "" }), "; ")
}

// Guard sets in a transaction what the relay's own statements need.
func (p *Pool) Guard(ctx context.Context, tx *sql.Tx) error {
	guard := p.guard()
	if guard == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, guard)
	return err
}

// Own calls f, which sends the relay's own statements: each is a transaction, or all of them are
// one, which has what they need.
func (p *Pool) Own(ctx context.Context, conn *sql.Conn, f func(q Querier) error) error {
	if p.guard() == "" {
		return f(conn)
	}
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.Guard(ctx, tx); err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
