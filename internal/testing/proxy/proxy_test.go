package proxy_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// through is a proxy before a database of the test's own, which has a table t, and pools that go
// through it and past it.
func through(t *testing.T, driver string) (p *proxy.Proxy, proxied, direct *relaytest.Database) {
	t.Helper()
	to := pgtest.Database(t)
	p, by := relaytest.Through(t, to)
	proxied, direct = relaytest.Direct(t, by, driver), relaytest.Direct(t, to, driver)
	direct.Do(t, `CREATE TABLE t (a int)`)
	return p, proxied, direct
}

func insert(ctx context.Context, db *relaytest.Database) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO t VALUES ($1)`, 1); err != nil {
		return err
	}
	return tx.Commit()
}

func TestACommitIsCutWhereTheTrapSays(t *testing.T) {
	needs.CI(t)
	for _, driver := range []string{"postgres", "pgx"} {
		for how, rows := range map[proxy.How]int{proxy.LoseReply: 1, proxy.LoseRequest: 0} {
			t.Run(driver, func(t *testing.T) {
				p, proxied, direct := through(t, driver)
				if err := insert(t.Context(), proxied); err != nil {
					t.Fatal(err)
				}
				var caught atomic.Bool
				p.Set(&proxy.Trap{Catches: proxy.Commit("INSERT INTO t"), How: how, Then: func() { caught.Store(true) }})
				p.Set(&proxy.Trap{Catches: proxy.Commit("INSERT INTO another"), How: how,
					Then: func() { t.Error("the wrong trap") }})
				if err := insert(t.Context(), proxied); err == nil || !caught.Load() {
					t.Errorf("got %v, caught %v", err, caught.Load())
				}
				if n := direct.Int(t, `SELECT count(*) FROM t`); n != 1+rows {
					t.Errorf("%d rows, want %d", n, 1+rows)
				}
				if err := insert(t.Context(), proxied); err != nil { // the trap is gone
					t.Error(err)
				}
			})
		}
	}
}

func TestASilentConnectionEndsOnNeitherSide(t *testing.T) {
	p, proxied, direct := through(t, "pgx")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.Set(&proxy.Trap{Catches: proxy.Statement("INSERT INTO t"), How: proxy.SilenceReply, Then: cancel})
	if err := insert(ctx, proxied); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context: the insert has no answer", err)
	}
	// pgx's cancel request has a connection of its own, for a moment.
	relaytest.Eventually(t, 20*time.Second, "the client has gone, and the silent connection is there on both sides",
		func() bool {
			return p.Conns() == 1 && direct.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND state = 'idle in transaction'`) == 1
		})
	p.CutSilent()
	if err := insert(t.Context(), proxied); err != nil {
		t.Error(err)
	}
}

func TestAConnectionIsCutAfterSomeBytes(t *testing.T) {
	p, proxied, _ := through(t, "postgres")
	if err := proxied.Ping(); err != nil {
		t.Fatal(err)
	}
	if !p.Cut(1000) {
		t.Fatal("there was no connection")
	}
	tx, err := proxied.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var text string
	if err := tx.QueryRow(`SELECT repeat('x', 2000)`).Scan(&text); err == nil {
		t.Error("the whole answer came")
	}
	_ = tx.Rollback()
	if err := proxied.Ping(); err != nil {
		t.Error(err)
	}
}

func TestATrapThatWasNotSprungIsGone(t *testing.T) {
	p, proxied, _ := through(t, "postgres")
	if p.Spring(proxy.Trap{Catches: proxy.Statement("INSERT INTO t"), How: proxy.LoseRequest}, time.Millisecond) {
		t.Error("it caught nothing")
	}
	if err := insert(t.Context(), proxied); err != nil {
		t.Error(err)
	}
}
