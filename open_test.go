package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	breaker "github.com/txoutbox/outbox/internal/chaos/proxy"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// through returns a proxy before the server, and the URL that leads through it.
func through(t testing.TB, to string) (*breaker.Proxy, string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p, err := breaker.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	u.Host = p.Address()
	return p, u.String()
}

func openPool(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := outbox.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// F24. lib/pq alone waits for ever here: the proxy's system acknowledges what it is sent.
func TestACallOnASilentConnectionEndsSoonAfterItsContext(t *testing.T) {
	t.Parallel()
	p, url := through(t, pgtest.Database(t))
	db := openPool(t, url)
	for name, call := range map[string]func(ctx context.Context, tx *sql.Tx, token string) error{
		"exec": func(ctx context.Context, tx *sql.Tx, token string) error {
			_, err := tx.ExecContext(ctx, `SELECT '`+token+`'`)
			return err
		},
		"query": func(ctx context.Context, tx *sql.Tx, token string) error {
			var one string
			return tx.QueryRowContext(ctx, `SELECT '`+token+`'`).Scan(&one)
		},
		"arguments": func(ctx context.Context, tx *sql.Tx, token string) error {
			var one string
			return tx.QueryRowContext(ctx, `SELECT '`+token+`' || $1`, "one").Scan(&one)
		},
		"rows": func(ctx context.Context, tx *sql.Tx, token string) error {
			rows, err := tx.QueryContext(ctx, `SELECT repeat('x', 10000) FROM generate_series(1, 10000) -- `+token)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
	} {
		for _, how := range []breaker.How{breaker.SilenceRequest, breaker.SilenceReply} {
			t.Run(fmt.Sprint(name, how), func(t *testing.T) {
				t.Parallel()
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				token := fmt.Sprint("silence of ", name, how)
				p.Set(&breaker.Trap{Catches: breaker.Statement(token), How: how})
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				began := time.Now()
				err = call(ctx, tx, token)
				if took := time.Since(began); err == nil || took > 8*time.Second {
					t.Errorf("ended after %v with %v, want an error within 8 s", took, err)
				}
				if err := tx.Commit(); err == nil {
					t.Error("the transaction could be committed")
				}
				if err := db.PingContext(t.Context()); err != nil {
					t.Errorf("the pool does not work any more: %v", err)
				}
			})
		}
	}
}

func TestAConnectionThatNeverGetsReadyIsGivenUpWithTheContext(t *testing.T) {
	t.Parallel()
	p, url := through(t, pgtest.Database(t))
	p.Delay(time.Hour)
	db := openPool(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := db.PingContext(ctx); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("got %v after %v, want an error within 5 s", err, time.Since(began))
	}
}

func TestOpenIsLibPQsPool(t *testing.T) {
	t.Parallel()
	db := openPool(t, pgtest.Database(t))
	if _, err := db.Exec(`CREATE TABLE t (a bigint, b text); INSERT INTO t VALUES (1, 'one'), (2, NULL)`); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	var level, readOnly, b string
	if err := errors.Join(tx.QueryRow(`SHOW transaction_isolation`).Scan(&level), tx.QueryRow(`SHOW transaction_read_only`).Scan(&readOnly),
		tx.QueryRow(`SELECT b FROM t WHERE a = $1`, 1).Scan(&b), tx.Rollback()); err != nil || level != "serializable" || readOnly != "on" || b != "one" {
		t.Errorf("got %q %q %q %v", level, readOnly, b, err)
	}
	if tx, err = db.Begin(); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(`INSERT INTO t VALUES (3, '3')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	stmt, err := db.Prepare(`SELECT count(*) FROM t WHERE a > $1`)
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	n := 0
	if err := stmt.QueryRow(1).Scan(&n); err != nil || n != 2 {
		t.Errorf("got %d %v, want 2", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := db.ExecContext(ctx, `SELECT pg_sleep(20)`); err == nil || time.Since(began) > 4*time.Second {
		t.Errorf("a statement that its context cancels: %v after %v", err, time.Since(began))
	}
}

func TestOpenRefusesWhatIsNoConnectionStringAndDoesNotShowIt(t *testing.T) {
	for _, dsn := range []string{"postgres://user:sesame@host:port/db", "password='sesame", "sesame"} {
		if _, err := outbox.Open(dsn); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: got %v", dsn, err)
		}
	}
}
