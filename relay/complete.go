package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// completion is one call of Complete, from BEGIN to COMMIT: the transaction that deletes the leased
// task is the one that fn works in.
//
//	BEGIN; DELETE by token; SAVEPOINT; fn; RELEASE; probe; COMMIT
//
// It is guarded as the claim of a Tx handler is, and fn's result has the same outcomes. After a
// failure the task is back under its lease, and the handler's result decides. DELETE comes first,
// so that an fn that commits removes the task together with its writes.
type completion struct {
	guardedTx
	r     *runner
	l     *lease
	ctx   context.Context
	row   store.Row       // as before the lease: begun counts the present run
	again *handler.Result // fn asked for another iteration
}

// The settings are made before the row is locked. They bound fn, whose row must not stay locked for
// long.
const completeSQL = `/* outbox: complete a leased task */
DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid
   AND set_config('idle_in_transaction_session_timeout', '60s', true) || set_config('statement_timeout', '30s', true)
    || set_config('lock_timeout', '10s', true) <> ''
RETURNING pg_current_xact_id()::text, (date_part('epoch', attempted_at) * 1000000)::bigint`

const endCompleteSQL = `/* outbox: end of a complete */
SELECT outbox.end_run($1, 0)`

// begin deletes the task, if its lease is held.
func (c *completion) begin() (err error) {
	if c.conn, c.tx, c.session, err = c.Conns.BeginSession(c.ctx); err != nil {
		return err
	}
	args := []any{c.l.id, c.l.token}
	err = c.exclusively(func(_ context.Context, e pg.Exclusive) error {
		return e.Together(c.ctx, "", c.SQL(completeSQL), args, c.Conns.Untimed()+"SAVEPOINT "+c.savepoint, func(values []driver.Value) error {
			c.xid, c.row.Began = pg.Text(values[0]), sql.NullInt64{Int64: pg.Integer(values[1]), Valid: true}
			return nil
		})
	})
	if err == nil && c.xid == "" {
		c.giveBack()
		return outbox.ErrLeaseLost
	}
	if err != nil {
		c.abort()
	}
	return err
}

// call runs fn and ends the transaction. Once stay is called nobody else ends it.
func (c *completion) call(fn func(*sql.Tx) error, stay func() bool) error {
	returned := false
	defer func() { // of a panic and a Goexit
		if returned || !stay() || !c.takeBack() {
			return
		}
		err := errGoexit
		if p := recover(); p != nil {
			err = guard.Panic(p)
			defer panic(p)
		}
		_ = c.bury(err)
	}()
	err := fn(c.tx)
	c.again, err = resultAgain(c.l.h, c.l.id, err) // by methods of the error, which may panic
	returned = true
	if !stay() {
		return c.l.gaveUp()
	}
	if err == nil {
		return c.succeed()
	}
	if c.takeBack() {
		return c.bury(err)
	}
	return err
}

// succeed commits what fn did, with the removal of the task or its next iteration.
func (c *completion) succeed() error {
	var keeps []string
	if c.again == nil {
		keeps = c.KeepTasks(c.l.h.Keep, []*store.Row{&c.row})
	}
	released := false
	err := c.exclusively(func(ctx context.Context, e pg.Exclusive) error {
		err := c.release(ctx, e, keeps, "", c.SQL(endCompleteSQL))
		if released = err == nil; released && c.again != nil {
			err = c.WriteBack(ctx, e, &c.row, after(c.r.log, c.l.h, &c.row, c.again, c.row.Begun()))
		}
		return err
	})
	switch {
	case err == nil:
		return c.commit()
	case released:
		c.abort()
		c.l.prevented.Store(pgerr.Lost(err)) // the connection worked after fn
		return c.failure(err)
	case !isBroken(err):
		c.giveBack()
		return c.failure(refusedBy(err))
	case endedTransaction(pgerr.Code(err), err):
		c.abort()
		return c.ended()
	}
	c.abort()
	return c.failure(unusable(err))
}

func (c *completion) commit() error {
	if err := c.tx.Commit(); err != nil {
		pg.Drop(c.conn)
		if pgerr.CommitFailed(err) {
			return c.failure(fmt.Errorf("commit: %w", err))
		}
		return c.unknown(err)
	}
	c.keepConn()
	c.completed()
	return nil
}

// ended acts on how fn, which returned nil, has ended the transaction.
func (c *completion) ended() error {
	switch status, err := c.TransactionStatus(c.xid); {
	case err != nil:
		return c.unknown(err)
	case status != "committed":
		return c.failure(errors.New("the function rolled its transaction back"))
	}
	c.r.log.Error("outbox: the function that Complete was given committed its transaction; it is the relay's to commit", "task_type", c.l.h.Type, "task_id", c.l.id)
	if c.again != nil {
		if err := c.r.insertAgain(c.ctx, c.l.h, []*store.Row{&c.row}, c.again); err != nil {
			c.l.completed.Store(&transition{outcome: Infrastructure})
			return c.failure(err)
		}
	}
	c.completed()
	return nil
}

// takeBack undoes what fn did before it failed, and reports whether that is not possible as fn had
// committed it.
func (c *completion) takeBack() (committed bool) {
	err := c.exclusively(c.undo)
	if err == nil {
		c.giveBack()
		return false
	}
	c.abort()
	if !endedTransaction(pgerr.Code(err), err) {
		return false
	}
	status, err := c.TransactionStatus(c.xid)
	c.l.prevented.Store(err != nil)
	return status == "committed"
}

// bury makes the task a dead letter whose removal fn committed before it failed.
func (c *completion) bury(fnErr error) error {
	c.r.log.Error("outbox: the function that Complete was given committed its transaction and then failed; the task is a dead letter", "task_type", c.l.h.Type, "task_id", c.l.id)
	end := &transition{outcome: Infrastructure}
	changes, err := c.r.buryCommitted(c.ctx, []*store.Row{&c.row}, fnErr)
	if err == nil {
		end.outcome, end.change = Dead, changes[0]
	}
	c.l.completed.Store(end)
	return c.failure(fmt.Errorf("the function committed its transaction and then failed: %w", errors.Join(fnErr, err)))
}

// completed notes that the handler's own result does not matter any more.
func (c *completion) completed() {
	if c.again == nil {
		c.l.completed.Store(&transition{outcome: Done})
		return
	}
	c.l.completed.Store(&transition{outcome: RunAgain})
	c.r.due(c.again.Wait)
}

func (c *completion) failure(err error) error {
	if cause := context.Cause(c.ctx); cause != nil { // it ended in the middle: perhaps by the loss of the lease
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("relay: complete task %d: %w", c.l.id, err)
}

func (c *completion) unknown(err error) error {
	c.l.prevented.Store(true)
	return fmt.Errorf("%w: task %d: %w", outbox.ErrCommitUnknown, c.l.id, err)
}
