package outboxpgx_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/enqueuetest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// newPool is a pool that is closed at the end of the test. It goes through the tests' pooler, if there is one.
func newPool(t testing.TB, url string, set ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	through, err := pgtest.PoolURL("pgx", url)
	relaytest.Must(err)
	config, err := pgxpool.ParseConfig(through)
	relaytest.Must(err)
	for _, f := range set {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	relaytest.Must(err)
	t.Cleanup(func() {
		done := make(chan struct{})
		go func() { pool.Close(); close(done) }()
		select { // it waits for the connections that are in use
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("%d connections of the pool are not given back", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// modes are all in which pgx sends a statement. PgBouncer in transaction mode needs one of the last two.
var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

func inMode(mode pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }
}

// ofPgx is tx with the functions of this package.
func ofPgx(tx pgx.Tx) enqueuetest.Tx {
	return enqueuetest.Tx{
		Querier:  outboxpgx.Querier(tx),
		Commit:   func() error { return tx.Commit(context.Background()) },
		Rollback: func() error { return tx.Rollback(context.Background()) },
		Enqueue: func(ctx context.Context, taskType string, payload any, opts ...outbox.Option) (outbox.Enqueued, error) {
			return outboxpgx.Enqueue(ctx, tx, taskType, payload, opts...)
		},
		EnqueueMany: func(ctx context.Context, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error) {
			return outboxpgx.EnqueueMany(ctx, tx, tasks)
		},
	}
}

// client is transactions of db.
func client(name string, db outboxpgx.Beginner) enqueuetest.Client {
	return enqueuetest.Client{Name: name,
		Begin: func(ctx context.Context) (enqueuetest.Tx, error) {
			tx, err := db.BeginTx(ctx, pgx.TxOptions{})
			if err != nil {
				return enqueuetest.Tx{}, err
			}
			return ofPgx(tx), nil
		},
		InTx: func(ctx context.Context, fn func(enqueuetest.Tx) error) error {
			return outboxpgx.InTx(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error { return fn(ofPgx(tx)) })
		}}
}

// nested is savepoints of transactions of db, which end with them.
func nested(db outboxpgx.Beginner) enqueuetest.Client {
	return enqueuetest.Client{Name: "pgx.Tx_in_a_pgx.Tx", Begin: func(ctx context.Context) (enqueuetest.Tx, error) {
		outer, err := db.BeginTx(ctx, pgx.TxOptions{})
		if err != nil {
			return enqueuetest.Tx{}, err
		}
		inner, err := outer.Begin(ctx)
		tx := ofPgx(inner)
		end := func(ctx context.Context, inner, outer func(context.Context) error) error {
			if err := inner(ctx); err != nil {
				return err
			}
			return outer(ctx)
		}
		tx.Commit = func() error { return end(context.Background(), inner.Commit, outer.Commit) }
		tx.Rollback = func() error {
			// of the inner one alone: what was before it stays
			return end(context.Background(), inner.Rollback, outer.Commit)
		}
		return tx, err
	}}
}

func TestAPgxTxEnqueuesTheRowsOfASqlTx(t *testing.T) {
	url := relaytest.Migrated(t)
	pool := newPool(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	relaytest.Must(err)
	defer conn.Close(context.Background())
	held, err := pool.Acquire(t.Context())
	relaytest.Must(err)
	defer held.Release()
	shared := outboxpgx.OpenDB(pool)
	defer shared.Close()
	clients := []enqueuetest.Client{client("pgxpool.Pool", pool), nested(pool),
		enqueuetest.SQL("sql.Tx_of_OpenDB", shared)}
	for _, mode := range modes[1:] {
		if mode < pgx.QueryExecModeExec && os.Getenv("OUTBOX_TEST_POOLER") != "" {
			continue // a statement in two messages might go to two sessions
		}
		clients = append(clients, client(mode.String(), newPool(t, url, inMode(mode))))
	}
	enqueuetest.Run(t, url, clients...)
	// These have one transaction at a time.
	for name, db := range map[string]outboxpgx.Beginner{"pgx.Conn": conn, "pgxpool.Conn": held} {
		relaytest.Must(outboxpgx.InTx(t.Context(), db, pgx.TxOptions{}, func(tx pgx.Tx) error {
			_, err := outboxpgx.Enqueue(t.Context(), tx, name, 1)
			return err
		}))
	}
	db := relaytest.Open(t, url)
	db.Want(t, "2", `SELECT count(*) FROM outbox.task WHERE task_type IN ('pgx.Conn', 'pgxpool.Conn')`)
}
