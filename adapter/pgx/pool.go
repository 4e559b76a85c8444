package outboxpgx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// OpenDB is a *sql.DB whose connections are those of pool: for a relay, schema.Migrate, admin and
// all else that needs one, in an app that has one pool for both. It connects to nothing, and keeps
// no connection that is not in use. Close it before pool; that closes no connection.
//
// It has at most as many connections as pool. A relay keeps those of its workers between two
// claims, so pool_max_conns, which is 4 or the number of CPUs by default, has to be what relay.New
// asks for, and those of the app. The error of a call whose context ends while the app has all
// connections says so; a relay takes it for an outage, and 10 s without a heartbeat cost it its
// leases.
//
// It differs from stdlib.OpenDBFromPool in two ways. It closes a connection whose session a handler
// has changed for good, or whose state the relay does not know; pgxpool would lend it to the app.
// And a relay's BEGIN, COMMIT and ROLLBACK end after 30 s without an answer, as with pgdb.Open.
func OpenDB(pool *pgxpool.Pool) *sql.DB {
	db := sql.OpenDB(connector{pool, stdlib.GetPoolConnector(pool)})
	db.SetMaxIdleConns(-1)
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	return db
}

type connector struct {
	pool *pgxpool.Pool
	of   driver.Connector
}

func (c connector) Driver() driver.Driver { return c.of.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.of.Connect(ctx)
	if s := c.pool.Stat(); err != nil && ctx.Err() != nil && s.AcquiredConns() == s.MaxConns() {
		return nil, fmt.Errorf("outboxpgx: all %d connections of the pgxpool are in use: raise pool_max_conns, or give "+
			"the relay a pool of its own: %w", s.MaxConns(), err)
	}
	if err != nil {
		return nil, err
	}
	return &pooled{Conn: conn.(*stdlib.Conn)}, nil
}

// pooled is pgx's connection, with all its methods.
type pooled struct {
	*stdlib.Conn
	bound time.Duration
}

const closeTimeout = 5 * time.Second

// Discard closes the connection itself, so that pool does not take it back. A relay calls it.
func (p *pooled) Discard() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = p.Conn.Conn().Close(ctx)
}

// BoundReplies limits how long BEGIN, COMMIT and ROLLBACK of database/sql, which know no context,
// wait for their answer, until the connection is lent again. Zero is no limit. A relay calls it.
func (p *pooled) BoundReplies(d time.Duration) { p.bound = d }

func (p *pooled) ResetSession(ctx context.Context) error {
	p.bound = 0
	return p.Conn.ResetSession(ctx)
}

func (p *pooled) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if p.bound == 0 {
		return p.Conn.BeginTx(ctx, opts)
	}
	ctx, cancel := context.WithCancel(ctx) // pgx sends COMMIT and ROLLBACK with it too
	defer time.AfterFunc(p.bound, cancel).Stop()
	tx, err := p.Conn.BeginTx(ctx, opts)
	if err != nil {
		cancel()
		return nil, err
	}
	return boundTx{tx, cancel, p.bound}, nil
}

// boundTx breaks its connection when COMMIT or ROLLBACK has no answer.
type boundTx struct {
	tx     driver.Tx
	cancel context.CancelFunc
	bound  time.Duration
}

func (t boundTx) Commit() error   { return t.end(t.tx.Commit) }
func (t boundTx) Rollback() error { return t.end(t.tx.Rollback) }

func (t boundTx) end(how func() error) error {
	defer t.cancel()
	defer time.AfterFunc(t.bound, t.cancel).Stop()
	return how()
}
