package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"runtime"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// The pool keeps two idle connections only, and closes others that it gets back.
func TestARelayOpensNoMoreConnectionsThanItMayUse(t *testing.T) {
	t.Parallel()
	const workers, tasks = 16, 600
	db := newDatabase(t)
	db.Enqueue(t, "TX", tasks)
	opened := &faulty{}
	opened.armNth(0, fault{}) // it keeps its calls
	pool := db.through(t, opened.wrap)
	pool.SetMaxOpenConns(workers + 2)
	run(t, pool, all(), relay.Config{Workers: workers, ListenDSN: db.URL})
	db.Emptied(t, 60*time.Second)
	n := 0
	for _, call := range opened.calls() {
		if call == "connect" {
			n++
		}
	}
	if n > workers+8 {
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
		got := make(chan *sql.Conn)
		go func() {
			conn, err := conns.Get(ctx)
			if err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			got <- conn
		}()
		for range round % 50 {
			runtime.Gosched()
		}
		conns.Put(conn)
		if conn = <-got; conn == nil {
			return
		}
	}
	conns.Put(conn)
}

// boundedConn is a connection as those of pgdb.Open: a reset forgets the bound of its replies.
type boundedConn struct {
	realConn
	bound  time.Duration
	resets int
}

func (c *boundedConn) BoundReplies(d time.Duration) { c.bound = d }

func (c *boundedConn) ResetSession(ctx context.Context) error {
	c.bound = 0
	c.resets++
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

// F24. COMMIT has no context: only this bound ends its wait for a server that is gone. The driver resets
// its session, as by database/sql, before each use of a connection that follows another.
func TestARelayResetsAConnectionAndBoundsItsRepliesWheneverItTakesIt(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, "postgres").through(t,
		func(c driver.Connector) driver.Connector { return boundedConnector{c} })
	conns := pg.NewPool(pool.DB)
	defer conns.Close()
	for before := range 3 {
		conn, err := conns.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Raw(func(c any) error {
			if c := c.(*boundedConn); c.bound == 0 || c.resets != before {
				t.Errorf("the connection waits for replies for %v, after %d resets and %d uses", c.bound, c.resets,
					before)
			}
			return nil
		})
		conns.Put(conn)
	}
}

// I11: a driver may have a goroutine for each statement's context, which ends with that one. So
// each context ends. The check is that of Stop.
func TestEachContextThatADriverGetsEnds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	watched := &faulty{each: func(ctx context.Context, _ string) {
		if done := ctx.Done(); done != nil {
			go func() { <-done }()
		}
	}}
	db.enqueueEach(t, 20)
	run(t, db.through(t, watched.wrap), all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
}
