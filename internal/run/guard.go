package run

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

var (
	errOtherTransaction = errors.New("relay: the transaction of the claim has ended")
	errOutOfStep        = errors.New("relay: the connection answers another question than was asked")
	errHidden           = errors.New("relay: the handler returned nil although a statement of its transaction had failed")
)

// guardedTx is a transaction that removes tasks and in which the app's code writes: a claim of a Tx
// or Batch handler, or a Complete. The app's code runs inside a savepoint, whose name is random.
// Afterwards the guard proves that the transaction is still the one that removed the tasks, and
// that nothing in it failed unseen.
type guardedTx struct {
	*store.Store
	conn    *sql.Conn // nil: the transaction is a test's, which ends it, and keeps its session
	tx      *sql.Tx
	session pg.Session
	xid     string
}

// savepoint is the name of all savepoints that the app's code runs in. No SQL that was written before
// the process began has it. One name for each would be a statement of its own for
// pg_stat_statements, before PostgreSQL 17.
var savepoint = "ob_" + strings.ToLower(rand.Text())

// begin begins a transaction on a connection of the pool.
func (g *guardedTx) begin(ctx context.Context) (err error) {
	g.conn, g.tx, g.session, err = g.Conns.BeginSession(ctx)
	return err
}

// within guards a test's transaction. Of what the app's code sets there, the role and the timeout
// are put back.
func (g *guardedTx) within(tx *sql.Tx) {
	g.tx = tx
	g.session.Restore = "SET LOCAL role TO DEFAULT; SET LOCAL statement_timeout = " + pg.Millis(pg.Bookkeeping)
}

// untimed are statements that lift transaction_timeout, which is another one in a test's
// transaction.
func (g *guardedTx) untimed() string {
	if g.conn == nil {
		return ""
	}
	return g.Conns.Untimed()
}

// exclusively calls f, whose context bounds its statements.
func (g *guardedTx) exclusively(f func(context.Context, pg.Exclusive) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*pg.Bookkeeping)
	defer cancel()
	if g.conn == nil {
		return f(ctx, pg.Within(g.tx))
	}
	return g.Conns.Raw(g.conn, func(c pg.Exclusive) error { return f(ctx, c) })
}

// exec runs statements without parameters, which travel together. They are bounded by the
// connection's settings, and by the driver's idea of a dead peer.
func (g *guardedTx) exec(statements string) error {
	return g.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		_, err := c.ExecContext(ctx, statements)
		return err
	})
}

// probeSQL asks for something that only the right connection in the right transaction can answer.
const probeSQL = `/* outbox: probe */
SELECT $1::integer || ' ' || pg_current_xact_id()`

// ask sends statements and a query that answers with its first parameter, a number, with the
// transaction's id, and with what is left in the session. It fails if the transaction is aborted,
// if the handler ended it or left rows open, and if the answer is to another question.
func (g *guardedTx) ask(ctx context.Context, c pg.Exclusive, statements, query string, args ...any) error {
	if g.conn == nil {
		query, args = probeSQL, nil
	}
	number, answered := mathrand.Int32(), false
	err := c.Together(ctx, statements, query, append([]any{number}, args...), "", func(got []driver.Value) error {
		same, rest, _ := strings.Cut(pg.Text(got[0]), " ")
		xid, left, _ := strings.Cut(rest, " ")
		switch {
		case len(got) != 1 || same != strconv.Itoa(int(number)):
			return errOutOfStep
		case xid != g.xid:
			return errOtherTransaction
		}
		answered, g.session.Left = true, g.session.Left || left != ""
		return nil
	})
	if err == nil && !answered {
		err = errOutOfStep
	}
	return err
}

// release ends the handler's savepoint, and asks with a query. The tasks that are done go to the
// history for keep, if that is not 0; after is more for the message. Without the guarded transaction
// the message fails and changes nothing, as the savepoint is gone.
//
// Released with an error: a statement of the relay's own failed, and the handler's work is not to
// blame. Statements after RELEASE are the relay's.
func (g *guardedTx) release(ctx context.Context, c pg.Exclusive, keep time.Duration, done []*store.Row, after, query string, args ...any) (released bool, err error) {
	// Deferred constraints and triggers must speak now, while their errors can be undone. The
	// handler may have taken a role that has no rights here.
	statements := "SET CONSTRAINTS ALL IMMEDIATE; "
	if g.conn == nil { // a test's stay deferred
		statements = "SAVEPOINT ob_deferred; " + statements + "ROLLBACK TO SAVEPOINT ob_deferred; RELEASE SAVEPOINT ob_deferred; "
	}
	statements += g.session.Restore
	if keep > 0 && len(done) > 0 { // payloads are parameters, which several statements in a message cannot have
		if err := g.ask(ctx, c, "", probeSQL); err != nil {
			return false, err
		}
		if _, err := c.ExecContext(ctx, statements); err != nil {
			return false, err
		}
		if err := g.Keep(ctx, c, keep, done); err != nil {
			return !pgerr.Refusal(err), err // a refusal may be for what is in the row
		}
		statements = g.session.Restore
	}
	err = g.ask(ctx, c, statements+"; RELEASE SAVEPOINT "+savepoint+after, query, args...)
	if err == nil || isBroken(err) {
		return err == nil, err
	}
	_, gone := c.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint)
	return pgerr.Code(gone) == "3B001", err
}

// undoneSQL is a probe that puts back of the session what a rollback does not.
const undoneSQL = `/* outbox: probe */
SELECT outbox.end_run($1, 0)`

// undo rolls the handler's work back and proves that the transaction still stands.
func (g *guardedTx) undo(ctx context.Context, c pg.Exclusive) error {
	_, err := c.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint+"; RELEASE SAVEPOINT "+savepoint+"; SET LOCAL statement_timeout = "+pg.Millis(pg.Bookkeeping))
	if err != nil {
		return err
	}
	return g.ask(ctx, c, "", g.SQL(undoneSQL))
}

// isBroken reports whether err, met by release, says that the transaction cannot be used or is not
// there any more. Else PostgreSQL refused what the handler did, and refusedBy is the handler's
// failure.
func isBroken(err error) bool {
	code := pgerr.Code(err)
	return code == "" || endedTransaction(code, err) || pgerr.Lost(err)
}

func refusedBy(err error) error {
	if pgerr.Code(err) == "25P02" {
		return errHidden
	}
	return fmt.Errorf("relay: deferred until the commit: %w", err)
}

// unusable is the failure of a handler that returned nil and left a broken transaction behind.
func unusable(err error) error {
	return fmt.Errorf("relay: the handler left its transaction unusable (rows not closed?): %w", err)
}

var errRolledBack = errors.New("relay: the handler rolled the transaction of its claim back")

// lost reports whether err means that the connection broke. pgx says so, too, of a live one that is
// busy with rows which the handler left open, but not when it is to prepare a statement. A SQLSTATE
// may be that of another server, in a trigger that writes there: then this connection works.
func (g *guardedTx) lost(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*pg.Bookkeeping)
		defer cancel()
		var s *sql.Stmt
		if s, err = g.tx.PrepareContext(ctx, "SELECT 1"); err == nil {
			_ = s.Close()
		}
	}
	return pgerr.Lost(err) && (pgerr.Code(err) == "" || g.exec("ROLLBACK TO SAVEPOINT "+savepoint) != nil)
}

// abort rolls back and closes the connection.
func (g *guardedTx) abort() {
	_ = g.tx.Rollback()
	pg.Drop(g.conn)
}

// giveBack rolls a healthy transaction back, which puts the tasks back as they were.
func (g *guardedTx) giveBack() error {
	if err := g.tx.Rollback(); err != nil {
		pg.Drop(g.conn)
		return err
	}
	g.keepConn()
	return nil
}

// keepConn keeps the connection for others, if its session is as the pool made it.
func (g *guardedTx) keepConn() {
	if g.session.Left {
		pg.Drop(g.conn)
		return
	}
	g.Conns.Put(g.conn)
}

const endBackendSQL = `/* outbox: end the backend of an abandoned claim */
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND transactionid = $1::text::xid8::xid`

// leave aborts beside a handler that is still running. A statement that it is in, and that no
// context of ours ends, goes with its backend.
func (g *guardedTx) leave() {
	rolledBack := make(chan struct{})
	go func() {
		defer close(rolledBack)
		g.abort()
	}()
	select {
	case <-rolledBack:
		return
	case <-time.After(time.Second):
	}
	_ = g.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, endBackendSQL, g.xid)
		return err
	})
	select {
	case <-rolledBack:
	case <-time.After(AbandonAfter):
	}
}

// endedTransaction reports whether err says that the claim's transaction or its savepoint is not
// there any more: only the handler can have ended it.
func endedTransaction(code string, err error) bool {
	return code == "25P01" || code == "3B001" || errors.Is(err, sql.ErrTxDone) || errors.Is(err, errOtherTransaction) ||
		strings.Contains(err.Error(), "unexpected transaction status")
}
