// Package apptx has the transactions that remove tasks and in which the app's code writes: claims of
// Tx and Batch handlers, and Task.Complete, in relays and in outboxtest.
//
//	Begin or Within ──> Take: removes the tasks; SAVEPOINT ──> the app's code
//	End:     keep       constraints, session, RELEASE, probe; results; COMMIT
//	         undo       ROLLBACK TO, RELEASE, probe; results; COMMIT
//	         roll back  ROLLBACK TO, RELEASE, probe; ROLLBACK
//	Abandon: ROLLBACK beside code that is still running
//
// The probe proves that the transaction is still the one that removed the tasks, and that nothing in
// it failed unseen. End never sends COMMIT when in doubt: it rolls back and closes the connection.
package apptx

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Tx is a transaction that removes tasks and in which the app's code writes, inside a savepoint.
type Tx struct {
	store   *store.Store
	conn    *sql.Conn // nil: the transaction is a test's, which ends it and keeps its session
	tx      *sql.Tx
	session pg.Session
	xid     string
}

// Savepoint is the name of all savepoints that the app's code runs in. It is random: no SQL that was
// written before the process began has it. A name for each savepoint would be a statement of its own
// for pg_stat_statements, before PostgreSQL 17.
var Savepoint = "ob_" + strings.ToLower(rand.Text())

var (
	// SetSavepoint is the statement that sets the savepoint.
	SetSavepoint     = "SAVEPOINT " + Savepoint
	releaseSavepoint = "; RELEASE SAVEPOINT " + Savepoint
)

// Begin begins a transaction on a connection of the pool.
func Begin(ctx context.Context, s *store.Store) (*Tx, error) {
	conn, tx, session, err := s.Conns.BeginSession(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{store: s, conn: conn, tx: tx, session: session}, nil
}

// Within is a test's transaction. The role and the timeout that the app's code sets are put back.
func Within(s *store.Store, tx *sql.Tx) *Tx {
	restore := "SET LOCAL role TO DEFAULT; SET LOCAL statement_timeout = " + pg.Millis(pg.Bookkeeping)
	return &Tx{store: s, tx: tx, session: pg.Session{Restore: restore}}
}

// SQL is the transaction for the app's code.
func (t *Tx) SQL() *sql.Tx { return t.tx }

// Untimed are statements that lift transaction_timeout, which a test's transaction keeps.
func (t *Tx) Untimed() string {
	if t.conn == nil {
		return ""
	}
	return t.store.Conns.Untimed()
}

// Take calls f, which removes the tasks, sets the savepoint and returns the transaction's id.
func (t *Tx) Take(f func(context.Context, pg.Exclusive) (xid string, err error)) error {
	return t.Exclusively(func(ctx context.Context, c pg.Exclusive) (err error) {
		t.xid, err = f(ctx, c)
		return err
	})
}

// Is reports whether the transaction with this id is still the one that removed the tasks.
func (t *Tx) Is(xid string) error {
	if xid != t.xid {
		return errOtherTransaction
	}
	return nil
}

// Exclusively calls f, whose context bounds its statements, while the app's code cannot use the
// connection.
func (t *Tx) Exclusively(f func(context.Context, pg.Exclusive) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*pg.Bookkeeping)
	defer cancel()
	if t.conn == nil {
		return f(ctx, pg.Within(t.tx))
	}
	return t.store.Conns.Raw(t.conn, func(c pg.Exclusive) error { return f(ctx, c) })
}

// Exec runs statements without parameters in one message. They are bounded by the connection's
// settings.
func (t *Tx) Exec(statements string) error {
	return t.Exclusively(func(ctx context.Context, c pg.Exclusive) error {
		_, err := c.ExecContext(ctx, statements)
		return err
	})
}

// Again undoes the writes of the app's code, which runs again then.
func (t *Tx) Again() error { return t.Exec("ROLLBACK TO SAVEPOINT " + Savepoint) }

// Aborted reports whether a statement of the app's code had failed.
func (t *Tx) Aborted() bool { return pgerr.Code(t.Exec("/* outbox: probe */ SELECT 1")) == "25P02" }

// Step are statements that keep or undo the writes for one task of several, and put the session
// back. The next savepoint follows them.
func (t *Tx) Step(keep bool) string {
	kept := "RELEASE SAVEPOINT " + Savepoint + "; " + t.session.Reset
	if keep {
		return kept
	}
	return "ROLLBACK TO SAVEPOINT " + Savepoint + "; " + kept
}

// probeSQL asks for an answer that only the right connection in the right transaction can give.
const probeSQL = `/* outbox: probe */
SELECT $1::integer || ' ' || pg_current_xact_id()`

// endRunSQL is a probe that deletes a row of the journal, of no task if it is 0, and that puts back of
// the session what a rollback does not.
const endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`

// ask sends statements and a query that answers with its first parameter, a number, with the
// transaction's id, and with what is left in the session. It fails if the transaction is aborted,
// if the app's code ended it or left rows open, and if the answer is to another query.
func (t *Tx) ask(ctx context.Context, c pg.Exclusive, statements, query string, args ...any) error {
	if t.conn == nil {
		query, args = probeSQL, nil
	}
	number, answered := mathrand.Int32(), false
	err := c.Together(ctx, statements, query, append([]any{number}, args...), "", func(got []driver.Value) error {
		same, rest, _ := strings.Cut(pg.Text(got[0]), " ")
		xid, left, _ := strings.Cut(rest, " ")
		if len(got) != 1 || same != strconv.Itoa(int(number)) {
			return errOutOfStep
		}
		answered, t.session.Left = true, t.session.Left || left != ""
		return t.Is(xid)
	})
	if err == nil && !answered {
		err = errOutOfStep
	}
	return err
}

// release keeps the writes of the app's code and sends the plan's statements. Without the right
// transaction the message fails and changes nothing, as the savepoint is not there.
//
// Released with an error: a statement of the relay's own failed, and the app's code is not to blame.
// Statements after RELEASE are the relay's.
func (t *Tx) release(ctx context.Context, c pg.Exclusive, p Plan) (released bool, err error) {
	// Deferred constraints and triggers must speak now, while their errors can be undone. The app's
	// code may have taken a role that has no rights here.
	statements := "SET CONSTRAINTS ALL IMMEDIATE; "
	if t.conn == nil { // a test's stay deferred
		statements = "SAVEPOINT ob_deferred; " + statements + "ROLLBACK TO SAVEPOINT ob_deferred; RELEASE SAVEPOINT ob_deferred; "
	}
	if p.History > 0 && len(p.Finished) > 0 { // payloads are parameters, which several statements in a message cannot have
		if err := t.ask(ctx, c, "", probeSQL); err != nil {
			return false, err
		}
		if _, err := c.ExecContext(ctx, statements+t.session.Restore); err != nil {
			return false, err
		}
		if err := t.store.Keep(ctx, c, p.History, p.Finished); err != nil {
			return !pgerr.Refusal(err), err // a refusal may be for what is in the row
		}
		statements = ""
	}
	err = t.ask(ctx, c, statements+t.session.Restore+releaseSavepoint+p.Statements, t.store.SQL(endRunSQL), p.TaskID)
	if err == nil || isBroken(err) {
		return err == nil, err
	}
	_, gone := c.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+Savepoint)
	return pgerr.Code(gone) == "3B001", err
}

// undo rolls the writes of the app's code back and proves that the transaction still stands.
func (t *Tx) undo(ctx context.Context, c pg.Exclusive) error {
	_, err := c.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+Savepoint+"; RELEASE SAVEPOINT "+Savepoint+
		"; SET LOCAL statement_timeout = "+pg.Millis(pg.Bookkeeping))
	if err != nil {
		return err
	}
	return t.ask(ctx, c, "", t.store.SQL(endRunSQL), 0)
}

// Abort rolls back and closes the connection.
func (t *Tx) Abort() {
	if t.conn == nil {
		return // the test rolls back
	}
	_ = t.tx.Rollback()
	pg.Drop(t.conn)
}

// RollBack rolls a healthy transaction back: the tasks are as before.
func (t *Tx) RollBack() error {
	if t.conn == nil {
		return nil
	}
	if err := t.tx.Rollback(); err != nil {
		pg.Drop(t.conn)
		return err
	}
	t.keepConn()
	return nil
}

// keepConn keeps the connection for others, if its session is as the pool made it.
func (t *Tx) keepConn() {
	if t.session.Left {
		pg.Drop(t.conn)
		return
	}
	t.store.Conns.Put(t.conn)
}

const endBackendSQL = `/* outbox: end the backend of an abandoned claim */
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_locks
 WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
   AND transactionid = $1::pg_catalog.text::pg_catalog.xid8::pg_catalog.xid`

// Abandon aborts beside code that is still running. A statement that no context of ours ends goes
// with its backend.
func (t *Tx) Abandon() {
	rolledBack := make(chan struct{})
	go func() {
		defer close(rolledBack)
		t.Abort()
	}()
	select {
	case <-rolledBack:
		return
	case <-time.After(time.Second):
	}
	_ = t.store.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, endBackendSQL, t.xid)
		return err
	})
	select {
	case <-rolledBack:
	case <-time.After(call.AbandonAfter):
	}
}

var (
	errOtherTransaction = errors.New("relay: the transaction of the claim has ended")
	errOutOfStep        = errors.New("relay: protocol out of sync: reply to a different query")
	errHidden           = errors.New("relay: the handler returned nil although a statement of its transaction had failed")
)

// isBroken reports whether err says that the transaction cannot be used or is not there any more.
// Else PostgreSQL refused what the app's code did.
func isBroken(err error) bool {
	return pgerr.Code(err) == "" || isEnded(err) || pgerr.Lost(err)
}

// isEnded reports whether err says that the transaction or its savepoint is not there any more: only
// the app's code can have ended it.
func isEnded(err error) bool {
	code := pgerr.Code(err)
	return code == "25P01" || code == "3B001" || errors.Is(err, sql.ErrTxDone) || errors.Is(err, errOtherTransaction) ||
		strings.Contains(err.Error(), "unexpected transaction status")
}

// isLost reports whether err means that the connection broke. pgx says so, too, of a live connection
// that is busy with open rows, but not when it is to prepare a statement. A SQLSTATE may be that of
// another server, in a trigger that writes there: then this connection works.
func (t *Tx) isLost(err error) bool {
	if t.conn == nil {
		return false
	}
	if errors.Is(err, driver.ErrBadConn) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*pg.Bookkeeping)
		defer cancel()
		var s *sql.Stmt
		if s, err = t.tx.PrepareContext(ctx, "SELECT 1"); err == nil {
			_ = s.Close()
		}
	}
	return pgerr.Lost(err) && (pgerr.Code(err) == "" || t.Again() != nil)
}

// refusedBy is the failure of code whose writes PostgreSQL refused.
func refusedBy(err error) error {
	switch pgerr.Code(err) {
	case "25P02":
		return errHidden
	case "":
		return pgerr.Within("relay: the handler left its transaction unusable (rows not closed?)", err)
	}
	return pgerr.Within("relay: deferred until the commit", err)
}

// XID is the id of the transaction that removed the tasks.
func (t *Tx) XID() string { return t.xid }
