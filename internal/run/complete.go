package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// removal is the work of one Complete, in a transaction that its owner begins and ends: it deletes
// the leased task, and fn writes.
//
//	DELETE by token; SAVEPOINT; fn; constraints, session, RELEASE, probe
//
// It is guarded as the claim of a Tx handler is. DELETE comes first, so that an fn that commits
// removes the task together with its writes.
type removal struct {
	guardedTx
	h     *handler.Handler
	token string
	row   store.Row       // as before the lease: begun counts the present run
	again *handler.Result // fn asked for another iteration
}

func newRemoval(s *store.Store, h *handler.Handler, leased *store.Row, token string) removal {
	d := removal{guardedTx: guardedTx{Store: s}, h: h, token: token, row: *leased}
	d.row.Attempt--
	return d
}

const endCompleteSQL = `/* outbox: end of a complete */
SELECT outbox.end_run($1, 0)`

// take deletes the task, if the lease is held.
func (d *removal) take(ctx context.Context) error {
	return d.exclusively(func(_ context.Context, c pg.Exclusive) error {
		xid, began, err := d.Store.Complete(ctx, c, store.Lease{TaskID: d.row.ID, Token: d.token}, d.untimed()+"SAVEPOINT "+savepoint)
		d.xid, d.row.Began = xid, &began
		return err
	})
}

// keep keeps what fn did, and writes the next iteration if fn asked for one.
func (d *removal) keep() (released bool, err error) {
	var history []*store.Row
	if d.again == nil {
		history = append(history, &d.row)
	}
	err = d.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		var err error
		if released, err = d.release(ctx, c, d.h.Keep, history, "", d.SQL(endCompleteSQL)); err != nil || d.again == nil {
			return err
		}
		return d.WriteBack(ctx, c, &d.row, nextIteration(*d.again))
	})
	return released, err
}

// completion is one call of Complete in a relay, from BEGIN to COMMIT. After a failure the task is
// back under its lease, and the handler's result decides.
type completion struct {
	removal
	r   *Runner
	l   *lease
	ctx context.Context
}

// start begins the transaction, and deletes the task in it.
func (c *completion) start() error {
	if err := c.begin(c.ctx); err != nil {
		return err
	}
	err := c.take(c.ctx)
	switch {
	case errors.Is(err, outbox.ErrLeaseLost):
		c.giveBack()
	case err != nil:
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
		p := recover()
		err := guard.Panic(p)
		if p != nil {
			defer panic(p)
		}
		_ = c.bury(err)
	}()
	err := fn(c.tx)
	c.again, err = resultAgain(c.h, c.l.row.ID, err) // by methods of the error, which may panic
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
	switch released, err := c.keep(); {
	case err == nil:
		return c.commit()
	case released:
		c.abort()
		c.l.prevented.Store(pgerr.Blameless(err))
		return c.failure(err)
	case !isBroken(err):
		c.giveBack()
		return c.failure(refusedBy(err))
	case endedTransaction(pgerr.Code(err), err):
		c.abort()
		return c.ended()
	case pgerr.Code(err) != "" && !c.lost(err): // of another server
		c.giveBack()
		return c.failure(refusedBy(err))
	default:
		c.abort()
		return c.failure(unusable(err))
	}
}

func (c *completion) commit() error {
	if err := c.tx.Commit(); err != nil {
		pg.Drop(c.conn)
		if pgerr.CommitFailed(err) {
			c.l.prevented.Store(pgerr.Blameless(err))
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
	c.r.Log.Error("outbox: the function that Complete was given committed its transaction; it is the relay's to commit", "task_type", c.h.Type, "task_id", c.l.row.ID)
	if _, err := c.r.recordCommitted(c.ctx, []*store.Row{&c.row}, nil, c.again); err != nil {
		c.l.completed.Store(&verdict{outcome: Infrastructure})
		return c.failure(err)
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
	end := verdict{outcome: Infrastructure}
	verdicts, err := c.r.recordCommitted(c.ctx, []*store.Row{&c.row}, fnErr, nil)
	if err == nil {
		end = verdicts[0]
		c.r.died(&c.row, end.change)
	}
	c.l.completed.Store(&end)
	return c.failure(fmt.Errorf("the function committed its transaction and then failed: %w", errors.Join(fnErr, err)))
}

// completed notes that the handler's own result does not matter any more.
func (c *completion) completed() {
	if c.again == nil {
		c.l.completed.Store(&verdict{outcome: Done})
		return
	}
	c.l.completed.Store(&verdict{outcome: RunAgain})
	c.r.due(c.again.Wait)
}

func (c *completion) failure(err error) error {
	if cause := context.Cause(c.ctx); cause != nil { // it ended in the middle: perhaps by the loss of the lease
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("relay: complete task %d: %w", c.l.row.ID, err)
}

func (c *completion) unknown(err error) error {
	c.l.prevented.Store(true)
	return fmt.Errorf("%w: task %d: %w", outbox.ErrCommitUnknown, c.l.row.ID, err)
}
