package pg

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
