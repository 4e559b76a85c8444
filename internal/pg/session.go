package pg

import (
	"context"
	"database/sql"
	"reflect"
)

// Session is what a transaction of the app's code has to do with the session of its connection. A
// claim begins with the Session as the pool made it, so what a handler sets beyond its transaction
// is put back before COMMIT.
type Session struct {
	Reset   string // statements that put it back, but for what outbox.end_run does
	Restore string // and that set the transaction's limits to those of a relay's own statements
	Left    bool   // end_run has found what nothing puts back: the connection is to be closed
}

// sessionSQL returns the statements that put the session back. RESET goes to what the connection
// began with: what its string, its role and its database ask for. What the pool's connector has set
// by statements since is set again, but for settings of the app's own (app.tenant), which
// PostgreSQL does not list. A setting that SET LOCAL hid after RESET ALL has the source session
// too, with the value that RESET gives it. Functions are asked instead of the views pg_settings and
// pg_roles, as a new session plans these for a millisecond. Temporary tables go unless it has made
// one.
const sessionSQL = `/* outbox: see how the pool made a session */
SELECT concat_ws('; ', 'RESET SESSION AUTHORIZATION', 'RESET ROLE', 'RESET ALL', 'CLOSE ALL',
  (SELECT 'DO ' || quote_literal('BEGIN PERFORM ' || string_agg(format('set_config(%L, %L, false)', name, current_setting(name)), ', ') || '; END')
     FROM pg_show_all_settings() WHERE source = 'session' AND setting IS DISTINCT FROM reset_val AND name NOT IN ('transaction_isolation', 'transaction_read_only', 'transaction_deferrable')),
  (SELECT 'SET SESSION AUTHORIZATION ' || quote_ident(session_user)
     FROM pg_stat_get_activity(pg_backend_pid()) a WHERE pg_get_userbyid(a.usesysid) <> session_user),
  CASE WHEN current_setting('role') <> 'none' THEN 'SET ROLE ' || quote_ident(current_setting('role')) END,
  'UNLISTEN *', (SELECT string_agg('LISTEN ' || quote_ident(c), '; ') FROM pg_listening_channels() c),
  CASE WHEN NOT EXISTS (SELECT 1 FROM pg_class WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema()) THEN 'DISCARD TEMP' END)`

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
	limits := "; SET LOCAL idle_in_transaction_session_timeout = " + Millis(Bookkeeping) + "; SET LOCAL statement_timeout = " + Millis(Bookkeeping)
	return conn, tx, Session{Reset: restore, Restore: restore + limits}, nil
}

// restoring returns the statements that put the connection's session back. A connection is asked
// when it is first seen, as that takes half a millisecond.
func (p *Pool) restoring(ctx context.Context, conn *sql.Conn, tx *sql.Tx) (restore string, err error) {
	var key any
	_ = conn.Raw(func(of any) error {
		if reflect.TypeOf(of).Kind() == reflect.Pointer {
			key = of
		}
		return nil
	})
	p.mu.Lock()
	restore, known := p.sessions[key]
	p.mu.Unlock()
	if known {
		return restore, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), StatementTimeout)
	defer cancel()
	if err := tx.QueryRowContext(ctx, sessionSQL).Scan(&restore); err != nil {
		return "", err
	}
	if key != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.sessions == nil || len(p.sessions) > 2*p.db.Stats().OpenConnections { // most are closed
			p.sessions = map[any]string{}
		}
		p.sessions[key] = restore
	}
	return restore, nil
}
