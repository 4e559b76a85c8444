package outboxpgx

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
// asks for, and those of the app. A relay that waits for a connection which the app does not give
// back treats that as an outage of the server.
//
// It is as stdlib.OpenDBFromPool, but for connections that a relay must not use again, as it does
// not know their transaction or a handler has changed their session: they are closed. pgxpool
// would lend them to the app.
func OpenDB(pool *pgxpool.Pool) *sql.DB {
	db := sql.OpenDB(connector{stdlib.GetPoolConnector(pool)})
	db.SetMaxIdleConns(-1)
	db.SetMaxOpenConns(int(pool.Config().MaxConns))
	return db
}

type connector struct{ of driver.Connector }

func (c connector) Driver() driver.Driver { return c.of.Driver() }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.of.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return pooled{conn.(*stdlib.Conn)}, nil
}

// pooled is pgx's connection, with all its methods.
type pooled struct{ *stdlib.Conn }

const closeTimeout = 5 * time.Second

// Discard closes the connection itself, so that pool does not take it back. A relay calls it.
func (p pooled) Discard() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = p.Conn.Conn().Close(ctx)
}
