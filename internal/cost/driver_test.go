package cost_test

import (
	"context"
	"database/sql/driver"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

// counter is a connector of lib/pq that counts what its connections do once they are open. Polls come by the clock, some for each
// second that the tasks take; they are counted, and left out of the others. Without a counter around it the connector counts as well,
// all by what is sent: Enqueue does not know lib/pq in another's clothes, and polls are not left out.
type counter struct {
	*pq.Connector
	calls atomic.Int64 // of the driver that send something: statements, begins, ends, pings
	trips atomic.Int64 // how often a connection went from writing to reading
	polls atomic.Int64
}

// pollEnd ends the text of each statement of a poll, as pg_stat_statements of PostgreSQL 18 drops what stands before a statement.
const pollEnd = " /* a poll */"

// isPoll reports whether a statement is one of a poll, by how its text begins.
func isPoll(query string) bool {
	return strings.HasPrefix(query, "/* outbox: poll") || strings.HasPrefix(query, "/* outbox: find ")
}

func newCounter(url string) (*counter, error) {
	connector, err := pq.NewConnector(url)
	if err != nil {
		return nil, err
	}
	c := &counter{Connector: connector}
	connector.Dialer(dialer{c})
	return c, nil
}

func (c *counter) Connect(ctx context.Context) (driver.Conn, error) {
	var socket *wire
	conn, err := c.Connector.Connect(context.WithValue(ctx, socketKey{}, &socket))
	if err != nil {
		return nil, err
	}
	socket.counts.Store(true)
	return &countedConn{pqConn: conn.(pqConn), counter: c, wire: socket}, nil
}

type socketKey struct{}

// dialer notes, for the Connect that asks it, the socket that it made.
type dialer struct{ c *counter }

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var plain net.Dialer
	conn, err := plain.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, trips: &d.c.trips}
	if socket, ok := ctx.Value(socketKey{}).(**wire); ok {
		*socket = w
	} else {
		w.calls = &d.c.calls
	}
	return w, nil
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

func (d dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// wire is a socket that counts round trips.
type wire struct {
	net.Conn
	counts atomic.Bool // the handshake is over, and no poll under way
	wrote  atomic.Bool
	trips  *atomic.Int64
	calls  *atomic.Int64 // or nil, if the driver's are counted
}

// Write sees whole messages. A query or what is to be prepared is a call; the handshake has neither.
func (w *wire) Write(p []byte) (int, error) {
	if w.calls != nil && (p[0] == 'Q' || p[0] == 'P') {
		w.calls.Add(1)
		w.counts.Store(true)
	}
	w.wrote.Store(true)
	return w.Conn.Write(p)
}

func (w *wire) Read(p []byte) (int, error) {
	if w.wrote.Swap(false) && w.counts.Load() {
		w.trips.Add(1)
	}
	return w.Conn.Read(p)
}

type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// countedConn is also its own driver.Tx, so that counting allocates nothing.
type countedConn struct {
	pqConn
	counter *counter
	wire    *wire
	tx      driver.Tx
}

func (c *countedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.counter.calls.Add(1)
	return c.pqConn.ExecContext(ctx, query, args)
}

func (c *countedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if isPoll(query) {
		c.counter.polls.Add(1)
		query += pollEnd
		c.wire.counts.Store(false)
		defer c.wire.counts.Store(true)
	} else {
		c.counter.calls.Add(1)
	}
	return c.pqConn.QueryContext(ctx, query, args)
}

// PrepareContext counts the preparation; what is executed later shows in the round trips.
func (c *countedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.counter.calls.Add(1)
	return c.pqConn.PrepareContext(ctx, query)
}

func (c *countedConn) Ping(ctx context.Context) error {
	c.counter.calls.Add(1)
	return c.pqConn.Ping(ctx)
}

func (c *countedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (_ driver.Tx, err error) {
	c.counter.calls.Add(1)
	if c.tx, err = c.pqConn.BeginTx(ctx, opts); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *countedConn) Commit() error {
	c.counter.calls.Add(1)
	return c.tx.Commit()
}

func (c *countedConn) Rollback() error {
	c.counter.calls.Add(1)
	return c.tx.Rollback()
}
