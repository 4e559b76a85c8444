package schema

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
)

// watch is lib/pq's connector with what happens on its connections on record. Its functions may be
// called by several connections at once; nil ones do nothing.
type watch struct {
	driver.Connector
	rewrite func(string) string // of the statements
	done    func(string, error) // after each statement

	mu     sync.Mutex
	sent   []string // statements, without those that begin and end transactions
	alone  []string // those of sent that ran outside of a transaction
	faults []string // what a pooler cannot give, and what could cut a COMMIT short
}

func (w *watch) record(list *[]string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*list = append(*list, text)
}

// writes are the statements that were sent, but for reads and settings.
func (w *watch) writes() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent {
		text := s
		if strings.HasPrefix(text, "--") {
			_, text, _ = strings.Cut(text, "\n")
		}
		reads := strings.HasPrefix(text, "SELECT ") && !strings.Contains(text, ";")
		if !reads && !strings.HasPrefix(s, "SET LOCAL ") {
			out = append(out, s)
		}
	}
	return out
}

func (w *watch) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedConn{pqConn: c.(pqConn), watch: w}, nil
}

// pqConn is what a connection of lib/pq has.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

type watchedConn struct {
	pqConn
	watch *watch
	inTx  bool
}

func (c *watchedConn) note(query string, args []driver.NamedValue) string {
	w := c.watch
	w.record(&w.sent, query)
	if !c.inTx {
		w.record(&w.alone, query)
	}
	if len(args) > 0 {
		w.record(&w.faults, "parameters: "+query)
	}
	if w.rewrite != nil {
		query = w.rewrite(query)
	}
	return query
}

func (c *watchedConn) result(query string, err error) error {
	if c.watch.done != nil {
		c.watch.done(query, err)
	}
	return err
}

func (c *watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	query = c.note(query, args)
	r, err := c.pqConn.ExecContext(ctx, query, args)
	return r, c.result(query, err)
}

func (c *watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	query = c.note(query, args)
	r, err := c.pqConn.QueryContext(ctx, query, args)
	return r, c.result(query, err)
}

func (c *watchedConn) Prepare(query string) (driver.Stmt, error) {
	c.watch.record(&c.watch.faults, "prepare: "+query)
	return nil, errors.New("prepared statements are not for poolers")
}

func (c *watchedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if ctx.Done() != nil {
		c.watch.record(&c.watch.faults, "a transaction that ends with its context")
	}
	tx, err := c.pqConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.inTx = true
	return &watchedTx{tx, c}, nil
}

type watchedTx struct {
	driver.Tx
	conn *watchedConn
}

func (t *watchedTx) Rollback() error {
	t.conn.inTx = false
	return t.Tx.Rollback()
}

func (t *watchedTx) Commit() error {
	t.conn.inTx = false
	return t.Tx.Commit()
}
