package pg

import (
	"context"
	"database/sql"
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
