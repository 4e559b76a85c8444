package relaytest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// The driver pgxpool is a *sql.DB over a pgxpool of its own, as that of outboxpgx.OpenDB, which is in
// a module that this one cannot require. So a relay's tests run on it: OUTBOX_TEST_DRIVER=pgxpool.
func init() { sql.Register("pgxpool", poolDriver{}) }

type poolDriver struct{}

func (poolDriver) Open(string) (driver.Conn, error) {
	return nil, errors.New("relaytest: pgxpool needs a connector")
}

func (d poolDriver) OpenConnector(url string) (driver.Connector, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 200 // tests open as many as they like
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return poolConnector{pool}, nil
}

type poolConnector struct{ pool *pgxpool.Pool }

func (c poolConnector) Driver() driver.Driver { return poolDriver{} }

func (c poolConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := stdlib.GetPoolConnector(c.pool).Connect(ctx)
	if err != nil {
		return nil, err
	}
	return pooledConn{conn.(*stdlib.Conn)}, nil
}

// Close is called by sql.DB.Close, which waits for no connection that is in use; the pool does.
func (c poolConnector) Close() error {
	go c.pool.Close()
	return nil
}

type pooledConn struct{ *stdlib.Conn }

func (p pooledConn) Discard() { _ = p.Conn.Conn().Close(context.Background()) }
