package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// asArguments hides its transaction's type, so that what is enqueued with it travels as arguments.
type asArguments struct{ outbox.Querier }

// wrapping is lib/pq in another driver's clothes, as tracers and the like are.
type wrapping struct{ *pq.Driver }

func init() { sql.Register("wrapping", wrapping{&pq.Driver{}}) }

// wrappingConnector is the same for sql.OpenDB.
type wrappingConnector struct{ *pq.Connector }

// questions are how often the client waited for the server meanwhile.
func questions(t *testing.T, p *proxy, q outbox.Querier, opts ...outbox.Option) int64 {
	t.Helper()
	before := p.questions.Load()
	if _, err := outbox.Enqueue(t.Context(), q, newType(), 1, opts...); err != nil {
		t.Fatal(err)
	}
	return p.questions.Load() - before
}

func TestAnEnqueueOnLibPQIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newDatabase(t).url, func(forward func()) { forward() })
	connector, err := pq.NewConnector(p.url)
	if err != nil {
		t.Fatal(err)
	}
	silent := func(*pq.Error) {}
	openDB := func(c driver.Connector) *sql.DB {
		db := sql.OpenDB(c)
		t.Cleanup(func() { db.Close() })
		return db
	}
	binary := withParameter(t, p.url, "binary_parameters", "yes")
	for _, c := range []struct {
		name  string
		db    *sql.DB
		begin func(context.Context, *sql.DB) (transaction, error)
		want  int64
	}{
		{"Open", direct(t, "postgres", p.url), beginTx, 1},
		{"Open, of sqlx", direct(t, "postgres", p.url), beginSqlx, 1},
		{"Open, a connection", direct(t, "postgres", p.url), beginConn, 1},
		{"Open, with binary parameters", direct(t, "postgres", binary), beginTx, 1},
		{"OpenDB", openDB(connector), beginTx, 1},
		{"OpenDB, with a handler of notices", openDB(pq.ConnectorWithNoticeHandler(connector, silent)), beginTx, 1},
		{"OpenDB, with a handler of notifications", openDB(pq.ConnectorWithNotificationHandler(connector, nil)), beginConn, 1},
		{"Open, wrapped", direct(t, "wrapping", p.url), beginTx, 2},
		{"OpenDB, wrapped", openDB(wrappingConnector{connector}), beginTx, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, err := c.begin(t.Context(), c.db)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.rollback() })
			every := []outbox.Option{outbox.Priority(1), outbox.MaxAttempts(3), outbox.RunAt(time.Now()), outbox.Headers(map[string]string{"a": "b"}), outbox.Timeout(time.Hour), outbox.OrderedBy("k"), outbox.SkipFailed()}
			for _, opts := range [][]outbox.Option{nil, {outbox.After(time.Hour)}, every} {
				if got := questions(t, p, tx.Querier, opts...); got != c.want {
					t.Errorf("with %d options: %d round trips, want %d", len(opts), got, c.want)
				}
			}
			if got := questions(t, p, asArguments{tx.Querier}); c.want == 1 && !strings.Contains(c.name, "binary") && got != 2 {
				t.Errorf("as arguments: %d round trips, want 2", got)
			}
		})
	}
}

// A literal that long costs the server more than a round trip.
func TestALongPayloadTravelsAsAnArgument(t *testing.T) {
	t.Parallel()
	p := newProxy(t, newDatabase(t).url, func(forward func()) { forward() })
	tx := begin(t, direct(t, "postgres", p.url))
	for _, c := range []struct {
		bytes int
		want  int64
	}{{1000, 1}, {7000, 1}, {64 << 10, 2}, {250 << 10, 2}} {
		before := p.questions.Load()
		if _, err := outbox.Enqueue(t.Context(), tx, "T", strings.Repeat("x", c.bytes)); err != nil {
			t.Fatal(err)
		}
		if got := p.questions.Load() - before; got != c.want {
			t.Errorf("%d bytes: %d round trips, want %d", c.bytes, got, c.want)
		}
	}
}

// pgx keeps each text that it was given, so there is one for all tasks.
func TestPgxPreparesOneStatementForAllEnqueues(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, begin := range []func(context.Context, *sql.DB) (transaction, error){beginTx, beginSqlx, beginConn} {
		tx, err := begin(t.Context(), direct(t, "pgx", d.url))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.rollback() })
		for i := range 10 {
			if _, err := outbox.Enqueue(t.Context(), tx.Querier, newType(), i); err != nil {
				t.Fatal(err)
			}
		}
		var n int
		if err := tx.QueryRowContext(t.Context(), `SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%enqueue_task(%' AND statement NOT LIKE '%pg_prepared%'`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d statements are prepared, %v; want 1", n, err)
		}
	}
}

// The end of a context gives the connection back, and may close it, while Enqueue looks at the transaction. The race detector
// says whether that harms.
func TestATransactionMayEndWhileATaskIsEnqueued(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.db.SetMaxIdleConns(-1)
	for range relaytest.Times(20, 100) {
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := d.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		var ending sync.WaitGroup
		ending.Go(cancel)
		for err == nil {
			_, err = outbox.Enqueue(t.Context(), tx, "T", 1)
		}
		ending.Wait()
		if !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, context.Canceled) && !errors.Is(err, driver.ErrBadConn) && sqlState(err) != "57014" {
			t.Fatalf("got %v, want that the transaction is done", err)
		}
	}
}

func TestErrorsAreTheSameBothWaysAndShowNoPayload(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = 'P0042'; END $$`)
	exec(t, d.db, `CREATE TRIGGER refuse BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.priority = 7) EXECUTE FUNCTION refuse()`)
	for _, c := range []struct {
		name, state string
		before      string
		opts        []outbox.Option
	}{
		{"no such schema", "3F000", "", []outbox.Option{outbox.Schema("nowhere")}},
		{"no such table", "42P01", "", []outbox.Option{outbox.Schema("public"), outbox.Priority(1)}},
		{"an aborted transaction", "25P02", "SAVEPOINT s; DO $$ BEGIN RAISE 'x'; END $$", nil},
		{"a refused row", "P0042", "", []outbox.Option{outbox.Priority(7)}},
		{"read only", "25006", "SET TRANSACTION READ ONLY", nil},
	} {
		texts := map[string]bool{}
		for _, wrap := range []func(outbox.Querier) outbox.Querier{
			func(q outbox.Querier) outbox.Querier { return q },
			func(q outbox.Querier) outbox.Querier { return asArguments{q} },
		} {
			tx := begin(t, d.db)
			if c.before != "" {
				_, _ = tx.Exec(c.before)
			}
			_, err := outbox.Enqueue(t.Context(), wrap(tx), "T", "a secret", c.opts...)
			var e *pq.Error
			if sqlState(err) != c.state || !errors.As(err, &e) {
				t.Errorf("%s: got %v, want SQLSTATE %s", c.name, err, c.state)
				continue
			}
			texts[err.Error()] = true
			if shown := err.Error() + e.Detail + e.Hint + e.Where; strings.Contains(shown, "secret") {
				t.Errorf("%s: the error shows the payload: %s", c.name, shown)
			}
			if err := tx.Rollback(); err != nil {
				t.Error(err)
			}
		}
		if len(texts) != 1 {
			t.Errorf("%s: got the errors %v, want one", c.name, texts)
		}
	}
}
