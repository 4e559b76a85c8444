package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// holdAll takes all connections of a pool, and returns what gives them back. until is called again
// and again meanwhile.
func holdAll(t *testing.T, pool *database, until func()) (release func()) {
	t.Helper()
	limit := pool.Stats().MaxOpenConnections
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := make(chan *sql.Conn)
	const calls = 50 // that wait, so that the relay rarely gets one
	for range calls {
		go func() {
			conn, _ := pool.Conn(ctx)
			taken <- conn
		}()
	}
	var held []*sql.Conn
	deadline := time.After(time.Minute)
	for len(held) < limit {
		select {
		case conn := <-taken:
			held = append(held, conn)
		case <-time.After(200 * time.Millisecond):
			until()
		case <-deadline:
			t.Fatalf("only %d connections of %d", len(held), limit)
		}
	}
	cancel()
	for range calls - limit {
		if conn := <-taken; conn != nil {
			_ = conn.Close()
		}
	}
	return func() {
		for _, conn := range held {
			_ = conn.PingContext(context.Background()) // so that the pool gets none back that until has killed
			_ = conn.Close()
		}
	}
}

// That a relay waits for its pool is no outage of PostgreSQL: before its start, and where it has
// lost all connections, also that of its heartbeat.
func TestARelayThatWaitsForItsPoolSaysSo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"it starts", "it works"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, h := newDatabase(t), &heard{}
			pool := direct(t, db.URL) // whose connections end with their sessions
			pool.SetMaxOpenConns(3)
			r := prepare(t, pool, all(), relay.Config{Workers: 1, Observers: h.observers()})
			kill := func() {}
			if name == "it works" {
				r.Start()
				relaytest.Healthy(t, r, "at first")
				kill = func() {
					db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE datname = current_database() AND pid <> pg_backend_pid()`)
				}
			}
			release := holdAll(t, pool, kill)
			defer release()
			if name == "it starts" {
				r.Start()
			}
			db.Enqueue(t, "TX", 3)
			eventually(t, time.Minute, "it waits for its pool", func() bool { return errors.Is(r.Health(), relay.ErrPoolBusy) })
			const text = "3 of at most 3 (SetMaxOpenConns), and the relays of this process on it (1) need 3: raise the limit"
			if err := r.Health(); errors.Is(err, relay.ErrOutage) || !strings.Contains(err.Error(), text) {
				t.Errorf("Health: %v", err)
			}
			r.Log.Want(t, 1, "the relay waits for a connection of its *sql.DB")
			release()
			relaytest.Healthy(t, r, "with connections")
			db.Emptied(t, time.Minute)
			r.Stop()
			noOutage(t, r.Log.String())
			if starved.MatchString(r.Log.String()) {
				return
			}
			r.Log.Want(t, 1, "the relay has a connection of its *sql.DB again")
			if got := len(h.events()); got != 4 {
				t.Errorf("observers heard %v", h.events())
			}
		})
	}
}

// Relays of one pool count each other.
func TestAPoolThatIsTooSmallForAnotherRelayIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool := open(t, db.URL)
	pool.SetMaxOpenConns(20)
	config := relay.Config{Workers: 10}
	first, second := prepare(t, pool, all(), config), prepare(t, pool, all(), config)
	first.Start()
	relaytest.Healthy(t, first, "alone")
	const want = "limited to 20 connections (SetMaxOpenConns), but this relay needs 12, " +
		"and those that run on it (1) need 12: use SetMaxOpenConns(24)"
	if _, err := relay.New(pool.DB, all(), config); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := relay.New(open(t, db.URL).DB, all(), config); err != nil {
		t.Errorf("on another pool: %v", err)
	}
	second.Start()
	relaytest.Healthy(t, second, "beside the first")
	second.Log.Want(t, 1, want)
	second.Stop()
	for _, limit := range []int{24, 12} {
		if pool.SetMaxOpenConns(limit); limit == 12 {
			first.Stop()
		}
		if _, err := relay.New(pool.DB, all(), config); err != nil {
			t.Errorf("with %d connections: %v", limit, err)
		}
	}
	first.Log.Want(t, 0, want)
}

// An app that closes the pool below its relay gets no outage: Run ends, Stop says why, and what ran
// is left to another relay, without an attempt.
func TestARelayEndsWhenItsPoolIsClosed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "LEASED", "TX"} {
		t.Run("with "+kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			pool := open(t, db.URL)
			began := make(chan struct{}, 1)
			reg := handlers.New()
			hold := func(ctx context.Context) error {
				select {
				case began <- struct{}{}:
				default: // it runs again until the relay finds out
				}
				<-ctx.Done()
				return ctx.Err()
			}
			handlers.Leased(reg, typeLeased, func(ctx context.Context, _ *outbox.Task[payload]) error {
				return hold(ctx)
			}, handlers.MaxAttempts(1))
			handlers.Tx(reg, typeTx, func(ctx context.Context, _ *sql.Tx, _ *outbox.Task[payload]) error {
				return hold(ctx)
			}, handlers.MaxAttempts(1))
			r := unstarted(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			must(r.Start(t.Context()))
			if kind != "" {
				db.Enqueue(t, kind, 1)
				<-began
			}
			must(pool.DB.Close())
			select {
			case <-r.Done():
			case <-time.After(25 * time.Second): // DrainTimeout is 30 s
				t.Fatalf("it still runs; Health is %v", r.Health())
			}
			if err := r.Stop(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("Stop: %v", err)
			}
			if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
				t.Errorf("Health: %v", err)
			}
			if kind != "" {
				db.want(t, 1, "tasks that wait or are leased, without a failure",
					`SELECT count(*) FROM outbox.task WHERE last_error IS NULL`)
			}
			if err := r.RunOnce(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("RunOnce: %v", err)
			}
			if err := r.Run(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

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
	noErr(t, err)
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

// A connection that broke in somebody's hands is lent to nobody again: a relay that starts would fail
// with it at each try.
func TestAConnectionThatIsPutBrokenIsNotLentAgain(t *testing.T) {
	t.Parallel()
	conns := pg.NewPool(direct(t, newDatabase(t).URL).DB)
	defer conns.Close()
	conn, err := conns.Get(t.Context())
	noErr(t, err)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	conns.Put(conn)
	conn, err = conns.Get(t.Context())
	noErr(t, err)
	defer conns.Put(conn)
	noErr(t, conn.PingContext(t.Context()))
}

// A relay's check of its driver meets a backend that ends, and the next try another one.
func TestACheckOfTheDriverThatFailsLeavesNoBrokenConnection(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	broken := &faulty{}
	conns := pg.NewPool(db.through(t, broken.wrap).DB)
	defer conns.Close()
	broken.armNth(3, fault{err: driver.ErrBadConn})
	failures := 0
	for conns.CheckDriver(t.Context()) != nil {
		if failures++; failures > 3 {
			t.Fatal("it fails again and again")
		}
	}
	if failures == 0 {
		t.Error("no check failed, so the test shows nothing")
	}
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
		noErr(t, err)
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
