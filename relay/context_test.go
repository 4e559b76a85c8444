package relay_test

import (
	"context"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/txoutbox/outbox/relay"
)

// watchful is a connector whose connections wait for the end of each context that they are given, as drivers do that cancel a
// statement by it.
type watchful struct{ driver.Connector }

func (w watchful) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return watchfulConn{conn.(realConn)}, nil
}

type watchfulConn struct{ realConn }

func watch(ctx context.Context) {
	if done := ctx.Done(); done != nil {
		go func() { <-done }()
	}
}

func (c watchfulConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	watch(ctx)
	return c.realConn.ExecContext(ctx, query, args)
}

func (c watchfulConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	watch(ctx)
	return c.realConn.QueryContext(ctx, query, args)
}

func (c watchfulConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	watch(ctx)
	return c.realConn.BeginTx(ctx, opts)
}

// I11: a driver may have a goroutine for each statement's context, which ends with that one. So each context ends. The check is that
// of Stop.
func TestEachContextThatADriverGetsEnds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	pool := db.through(t, func(c driver.Connector) driver.Connector { return watchful{c} })
	for _, name := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, name, 20)
	}
	r := run(t, pool, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	r.Stop()
}
