package pgdb

import (
	"context"
	"database/sql/driver"
	"time"
)

// pqConn has the interfaces of a connection of lib/pq.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// wiredConn is a connection of lib/pq. It is its own transaction, as lib/pq's is.
type wiredConn struct {
	pqConn
	wire   *wire
	tx     driver.Tx
	cancel context.CancelFunc // of tx's context; nil where nothing bounds it
	bound  time.Duration
}

// BoundReplies limits how long BEGIN, COMMIT and ROLLBACK of database/sql, which know no context,
// wait for their answer, until the connection is given back to its pool. Zero is no limit. A relay
// calls it.
func (c *wiredConn) BoundReplies(d time.Duration) { c.bound = d }

// CheckNamedValue is lib/pq's, which 1.10.9 does not have.
func (c *wiredConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.pqConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// IsValid and ResetSession keep a connection out of the pool whose deadline stays: lib/pq does not
// mind a prepared statement that was cancelled.
func (c *wiredConn) IsValid() bool { return !c.wire.isDoomed() && c.pqConn.IsValid() }

func (c *wiredConn) ResetSession(ctx context.Context) error {
	c.bound = 0
	if c.wire.isDoomed() {
		return driver.ErrBadConn
	}
	return c.pqConn.ResetSession(ctx)
}

func (c *wiredConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.cancel = nil
	if c.bound > 0 {
		ctx, c.cancel = context.WithCancel(ctx)
	}
	err := c.wire.within(c.bound, func() (err error) {
		c.tx, err = c.pqConn.BeginTx(ctx, opts)
		return err
	})
	return c, err
}

// Commit sends a cancel request when its time is up. Where the server waits for a standby that ends
// the wait, and the answer is that the transaction is committed; a backend that is only left would
// wait on, with its locks, for each COMMIT that is given up.
func (c *wiredConn) Commit() error {
	if c.cancel == nil {
		return c.tx.Commit()
	}
	defer c.cancel()
	defer time.AfterFunc(c.bound, c.cancel).Stop()
	return c.wire.lost(c.tx.Commit())
}

func (c *wiredConn) Rollback() error {
	if c.cancel != nil {
		defer c.cancel()
	}
	return c.wire.within(c.bound, c.tx.Rollback)
}
