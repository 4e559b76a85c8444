package outboxpgx_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/wake"
)

func countWakes(t *testing.T) *atomic.Int64 {
	var n atomic.Int64
	t.Cleanup(wake.Register(func() { n.Add(1) }))
	return &n
}

func tasks(t *testing.T, db *relaytest.Database, name string) int {
	t.Helper()
	return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = $1`, name)
}

func TestInTxTellsWhenTheOutcomeOfTheCommitIsUnknown(t *testing.T) {
	url := relaytest.Migrated(t)
	db := relaytest.Open(t, url, "postgres")
	db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY)`)
	db.Do(t, `CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	p, through := relaytest.Through(t, url)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		for _, c := range []struct {
			name, statement    string
			lose               []proxy.How
			unknown, committed bool
			code               string
		}{
			{"REFUSED", `INSERT INTO child VALUES (1)`, nil, false, false, "23503"},
			{"FAILED", `SELECT 1/0`, nil, false, false, ""},
			{"ENDED", `COMMIT`, nil, false, true, ""},
			{"REPLY", `SELECT 'the reply is lost'`, []proxy.How{proxy.LoseReply}, true, true, ""},
			{"REQUEST", `SELECT 'the request is lost'`, []proxy.How{proxy.LoseRequest}, true, false, ""},
		} {
			for _, how := range c.lose {
				p.Set(&proxy.Trap{Catches: proxy.Commit(c.statement), How: how})
			}
			pool, wakes, calls := newPool(t, through, inMode(mode)), countWakes(t), 0
			name := c.name + mode.String()
			err := outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
				calls++
				_, err := outboxpgx.Enqueue(t.Context(), tx, name, 1)
				if c.name == "ENDED" {
					return errors.Join(err, tx.Commit(t.Context()))
				}
				_, _ = tx.Exec(t.Context(), c.statement)
				return err
			})
			want := "outbox: commit: "
			if c.unknown {
				want = outbox.ErrCommitUnknown.Error()
			}
			if err == nil || errors.Is(err, outbox.ErrCommitUnknown) != c.unknown || calls != 1 ||
				!strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: got %v after %d calls, want %s after 1", name, err, calls, want)
			}
			var of *pgconn.PgError
			if c.code != "" && (!errors.As(err, &of) || of.Code != c.code) {
				t.Errorf("%s: got %v, want a *pgconn.PgError with %s", name, err, c.code)
			}
			if got := tasks(t, db, name) == 1; got != c.committed {
				t.Errorf("%s: committed is %v, want %v", name, got, c.committed)
			}
			if got := wakes.Load() == 1; got != c.unknown {
				t.Errorf("%s: it woke relays: %v, want %v, as there may be a task", name, got, c.unknown)
			}
			relaytest.Eventually(t, time.Minute, "no connection is in use", func() bool { // puddle destroys in a goroutine
				return pool.Stat().AcquiredConns() == 0
			})
		}
	}
}

func TestABackendThatIsKilledLeavesNothing(t *testing.T) {
	url := relaytest.Migrated(t)
	db := relaytest.Open(t, url, "postgres")
	pool := newPool(t, url)
	for _, hide := range []bool{false, true} {
		wakes := countWakes(t)
		var second error
		err := outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
			_, err := outboxpgx.Enqueue(t.Context(), tx, "KILLED", 1)
			relaytest.Must(err)
			var pid int
			relaytest.Must(tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid))
			db.Do(t, `SELECT pg_terminate_backend($1, 60000)`, pid)
			if _, second = outboxpgx.Enqueue(t.Context(), tx, "KILLED", 2); hide {
				return nil
			}
			return second
		})
		if second == nil || err == nil || outbox.IsSerializationFailure(err) {
			t.Errorf("hide is %v: got %v, and %v of the Enqueue; want errors", hide, err, second)
		}
		if !hide && (errors.Is(err, outbox.ErrCommitUnknown) || err != second || wakes.Load() != 0) {
			t.Errorf("got %v and %d wake-ups, want fn's error and none", err, wakes.Load())
		}
		if n := tasks(t, db, "KILLED"); n != 0 {
			t.Errorf("%d tasks were committed", n)
		}
	}
	relaytest.Must(outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{}, func(tx pgx.Tx) error { // the pool goes on
		_, err := outboxpgx.Enqueue(t.Context(), tx, "ALIVE", 1)
		return err
	}))
	if n := tasks(t, db, "ALIVE"); n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
}

func TestInTxReportsThatItCouldNotBegin(t *testing.T) {
	url := relaytest.Migrated(t)
	never := func(pgx.Tx) error {
		t.Error("called without a transaction")
		return nil
	}
	nowhere := newPool(t, "postgres://u:secret@127.0.0.1:1/nowhere")
	err := outboxpgx.InTx(t.Context(), nowhere, pgx.TxOptions{}, never)
	if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.HasPrefix(err.Error(), "outbox: begin: ") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error of begin", err)
	}
	pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 1 })
	err = outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{IsoLevel: "no level"}, never)
	if err == nil || !strings.HasPrefix(err.Error(), "outbox: begin: ") {
		t.Errorf("a level that PostgreSQL does not have: %v", err)
	}
	held, err := pool.Acquire(t.Context())
	relaytest.Must(err)
	defer held.Release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, never); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no connection is free: got %v, want context.DeadlineExceeded", err)
	}
}

func TestInTxDoesNotCutACommitShortWhenItsContextEnds(t *testing.T) {
	url := relaytest.Migrated(t)
	db, pool := relaytest.Open(t, url, "postgres"), newPool(t, url)
	db.Do(t, `CREATE TABLE held (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	release := db.Hold(t, `INSERT INTO held VALUES (1)`)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO held VALUES (1)`)
			_, enqueued := outboxpgx.Enqueue(ctx, tx, "COMMITS", 1)
			return errors.Join(err, enqueued)
		})
	}()
	relaytest.Eventually(t, time.Minute, "its COMMIT waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`) == 1
	})
	cancel()
	for range 20 { // round trips, in which a driver would act on the end of its context
		db.Do(t, `SELECT 1`)
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("got %v, want nil although the context ended", err)
	}
	if n := tasks(t, db, "COMMITS"); n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
}

func TestInTxTakesOptions(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t))
	relaytest.Must(outboxpgx.InTx(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		var level string
		if err := tx.QueryRow(t.Context(), `SHOW transaction_isolation`).Scan(&level); err != nil ||
			level != "serializable" {
			t.Errorf("got %s, %v", level, err)
		}
		return nil
	}))
	seat := func(ctx context.Context, tx pgx.Tx, n int) error {
		_, err := tx.Exec(ctx, `INSERT INTO seat SELECT $1 + 0 * count(*) FROM seat`, n)
		return err
	}
	_, err := pool.Exec(t.Context(), `CREATE TABLE seat (n bigint)`)
	relaytest.Must(err)
	serializable := pgx.TxOptions{IsoLevel: pgx.Serializable}
	err = outboxpgx.InTx(t.Context(), pool, serializable, func(tx pgx.Tx) error {
		relaytest.Must(seat(t.Context(), tx, 1))
		return outboxpgx.InTx(t.Context(), pool, serializable, func(tx pgx.Tx) error { return seat(t.Context(), tx, 2) })
	})
	if !outbox.IsSerializationFailure(err) || !strings.HasPrefix(err.Error(), "outbox: commit: ") {
		t.Errorf("got %v, want a serialization failure of the COMMIT", err)
	}
}
