package outboxpgx_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func conns(n int32) func(*pgxpool.Config) { return func(c *pgxpool.Config) { c.MaxConns = n } }

// A commit wakes the relay of its process, which would poll a minute later and has no LISTEN. The
// app's transactions and the handlers' have one pool.
func TestOnePoolForTheAppAndItsRelay(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t), conns(8))
	db := outboxpgx.OpenDB(pool)
	defer db.Close()
	var leased, ran atomic.Int64
	tx, slow := outbox.NewTaskType[int]("TX"), outbox.NewTaskType[int]("SLOW")
	reg := handlers.New()
	handlers.Tx(reg, tx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[int]) error {
		ran.Add(1)
		_, err := slow.Enqueue(ctx, tx, task.Payload)
		return err
	})
	handlers.Leased(reg, slow, func(ctx context.Context, task *outbox.Task[int]) error {
		leased.Add(1)
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Workers: 4, PollInterval: time.Minute})
	relaytest.Must(err)
	relaytest.Must(r.Start(t.Context()))
	for i := range 5 {
		relaytest.Must(outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{}, func(of pgx.Tx) error {
			_, err := tx.Enqueue(t.Context(), outboxpgx.Querier(of), i)
			return err
		}))
		relaytest.Eventually(t, 30*time.Second, "the tasks run", func() bool {
			return int(ran.Load()) == i+1 && int(leased.Load()) == i+1
		})
	}
	relaytest.Must(r.Stop(t.Context()))
	// pgxpool closes a connection in a goroutine.
	relaytest.Eventually(t, time.Minute, "no connection is in use after Stop", func() bool {
		return pool.Stat().AcquiredConns() == 0
	})
}

func TestARelayIsRefusedAPoolThatIsTooSmall(t *testing.T) {
	db := outboxpgx.OpenDB(newPool(t, "postgres://127.0.0.1:1/nowhere", conns(4)))
	defer db.Close()
	reg := handlers.New()
	nothing := func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil }
	handlers.Tx(reg, outbox.NewTaskType[int]("T"), nothing)
	if _, err := relay.New(db, reg, relay.Config{}); err == nil || !strings.Contains(err.Error(), "connections") {
		t.Errorf("got %v, want an error that names connections", err)
	}
}

func TestAPoolThatTheAppUsesUpIsNamed(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t), conns(1))
	db := outboxpgx.OpenDB(pool)
	defer db.Close()
	held, err := pool.Acquire(t.Context())
	relaytest.Must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = db.PingContext(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "all 1 connections of the pgxpool") {
		t.Errorf("got %v, want an error that names the pool", err)
	}
	held.Release()
	relaytest.Must(db.PingContext(t.Context()))
}

// A relay closes a connection in which a handler has left what no statement undoes. pgxpool would
// lend it to the app.
func TestNoSessionThatAHandlerChangedGetsToTheApp(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t), conns(8))
	db := outboxpgx.OpenDB(pool)
	defer db.Close()
	changes := outbox.NewTaskType[string]("CHANGES")
	reg := handlers.New()
	handlers.Tx(reg, changes, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[string]) error {
		_, err := tx.ExecContext(ctx, task.Payload)
		return err
	})
	relaytest.Must(outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := outboxpgx.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{changes.New(`PREPARE left_behind AS SELECT 1`),
			changes.New(`SET application_name = 'left behind'`), changes.New(`SELECT pg_advisory_lock(7)`)})
		return err
	}))
	relaytest.RunDue(t.Context(), db, reg)
	db2 := relaytest.Open(t, pool.Config().ConnString(), "postgres")
	if n := db2.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
		t.Fatalf("%d tasks have not run", n)
	}
	idle := pool.AcquireAllIdle(t.Context())
	if len(idle) == 0 {
		t.Error("no connection came back to the pool")
	}
	for _, conn := range idle {
		var left int
		relaytest.Must(conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_statements WHERE from_sql)
			+ (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
			+ (current_setting('application_name') = 'left behind')::int`).Scan(&left))
		if left != 0 {
			t.Errorf("a connection of the pool has %d of what handlers left", left)
		}
		conn.Release()
	}
}

// pgx ends a COMMIT without an answer by the context of its BEGIN, which a relay does not end.
func TestACommitWithoutAnAnswerEndsWhereARelayAsks(t *testing.T) {
	p, through := relaytest.Through(t, relaytest.Migrated(t))
	db := outboxpgx.OpenDB(newPool(t, through, conns(1)))
	defer db.Close()
	conn, err := db.Conn(t.Context())
	relaytest.Must(err)
	relaytest.Must(conn.Raw(func(c any) error {
		c.(interface{ BoundReplies(time.Duration) }).BoundReplies(500 * time.Millisecond)
		return nil
	}))
	for _, silent := range []bool{false, true} {
		tx, err := conn.BeginTx(context.WithoutCancel(t.Context()), nil)
		relaytest.Must(err)
		const statement = `SELECT 'the reply is lost'`
		if silent {
			p.Set(&proxy.Trap{Catches: proxy.Commit(statement), How: proxy.SilenceReply})
		}
		_, err = tx.ExecContext(t.Context(), statement)
		relaytest.Must(err)
		if err := tx.Commit(); (err != nil) != silent || silent && pgerr.CommitFailed(err) {
			t.Errorf("silent is %v: got %v", silent, err)
		}
	}
	relaytest.Must(conn.Close())
	p.CutSilent()
	var n int // over another connection
	relaytest.Must(db.QueryRowContext(t.Context(), `SELECT 1`).Scan(&n))
}
