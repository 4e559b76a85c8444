package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// dials counts the connections that a pool opens.
type dials struct {
	driver.Connector
	n atomic.Int64
}

func (d *dials) Connect(ctx context.Context) (driver.Conn, error) {
	d.n.Add(1)
	return d.Connector.Connect(ctx)
}

// The pool keeps two idle connections only, and closes others that it gets back.
func TestARelayOpensNoMoreConnectionsThanItMayUse(t *testing.T) {
	t.Parallel()
	const workers, tasks = 16, 600
	db := newDatabase(t)
	db.Enqueue(t, "TX", tasks)
	connector, err := pq.NewConnector(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	opened := &dials{Connector: connector}
	pool := sql.OpenDB(opened)
	t.Cleanup(func() { pool.Close() })
	pool.SetMaxOpenConns(workers + 2)
	var ran atomic.Int64
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		ran.Add(1)
		return nil
	})
	run(t, &database{&relaytest.Database{DB: pool, URL: db.URL}}, reg, relay.Config{Workers: workers, ListenDSN: db.URL})
	eventually(t, 60*time.Second, "all tasks ran", func() bool { return ran.Load() >= tasks })
	if n := opened.n.Load(); n > workers+8 {
		t.Errorf("%d connections were opened, want %d at most", n, workers+8)
	}
}

// Whenever the call begins to wait for the pool's limit, before the connection is put or after it.
func TestAConnectionThatIsPutReachesACallThatWaitsForThePool(t *testing.T) {
	t.Parallel()
	pool := direct(t, newDatabase(t).URL)
	pool.SetMaxOpenConns(1)
	conns := pg.NewPool(pool.DB)
	defer conns.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := conns.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for round := range relaytest.Times(60, 300) {
		type answer struct {
			conn *sql.Conn
			err  error
		}
		got := make(chan answer)
		go func() {
			conn, err := conns.Get(ctx)
			got <- answer{conn, err}
		}()
		for range round % 50 {
			runtime.Gosched()
		}
		conns.Put(conn)
		a := <-got
		if a.err != nil {
			t.Fatalf("round %d: %v", round, a.err)
		}
		conn = a.conn
	}
	conns.Put(conn)
}

// boundedConn is a connection as those of pgdb.Open: a reset forgets the bound of its replies.
type boundedConn struct {
	realConn
	bound time.Duration
}

func (c *boundedConn) BoundReplies(d time.Duration) { c.bound = d }

func (c *boundedConn) ResetSession(ctx context.Context) error {
	c.bound = 0
	return c.realConn.ResetSession(ctx)
}

type boundedConnector struct{ driver.Connector }

func (c boundedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &boundedConn{realConn: conn.(realConn)}, nil
}

// F24. COMMIT has no context: only this bound ends its wait for a server that is gone.
func TestTheRepliesOfAConnectionAreBoundedWheneverARelayTakesIt(t *testing.T) {
	t.Parallel()
	connector, err := pq.NewConnector(newDatabase(t, "postgres").URL)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(boundedConnector{connector})
	defer pool.Close()
	conns := pg.NewPool(pool)
	defer conns.Close()
	for range 3 {
		conn, err := conns.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Raw(func(c any) error {
			if c.(*boundedConn).bound == 0 {
				t.Error("the connection waits for replies without a limit")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		conns.Put(conn)
	}
}
