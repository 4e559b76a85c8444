package outboxpgx_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

type someType struct{ N int }

func TestWhatIsNoTransactionIsRefused(t *testing.T) {
	var none pgx.Tx
	typed := outbox.NewTaskType[someType]("T")
	for about, tx := range map[string]pgx.Tx{"nil": none, "a nil *pgxpool.Tx": (*pgxpool.Tx)(nil)} {
		_, one := outboxpgx.Enqueue(t.Context(), tx, "T", 1)
		_, many := outboxpgx.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{{Type: "T"}})
		_, nothing := outboxpgx.EnqueueMany(t.Context(), tx, nil)
		_, byType := typed.Enqueue(t.Context(), outboxpgx.Querier(tx), someType{})
		_, canceled := outbox.Cancel(t.Context(), outboxpgx.Querier(tx), 1)
		_, due := outbox.RunNow(t.Context(), outboxpgx.Querier(tx), 1)
		for _, err := range []error{one, many, nothing, byType, canceled, due} {
			if !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s: got %v, want ErrNoTransaction", about, err)
			}
		}
	}
}

func TestATransactionThatHasEndedOrFailedSaysSo(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t))
	tx, err := pool.Begin(t.Context())
	relaytest.Must(err)
	_, _ = tx.Exec(t.Context(), `SELECT 1/0`)
	var of *pgconn.PgError
	if _, err = outboxpgx.Enqueue(t.Context(), tx, "T", 1); !errors.As(err, &of) || of.Code != "25P02" ||
		!strings.HasPrefix(err.Error(), "outbox: enqueue T: ") {
		t.Errorf("got %v, want 25P02 as a *pgconn.PgError", err)
	}
	relaytest.Must(tx.Rollback(t.Context()))
	if _, err = outboxpgx.Enqueue(t.Context(), tx, "T", 1); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("got %v, want pgx.ErrTxClosed", err)
	}
	if _, err = outbox.Stats(t.Context(), outboxpgx.Querier(tx)); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("got %v, want pgx.ErrTxClosed", err)
	}
}

// statements notes all that is sent on the connections of a pool.
type statements struct{ sent []string }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.sent = append(s.sent, d.SQL)
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The bridge sends the statement of a call and nothing else.
func TestACallIsItsStatementAlone(t *testing.T) {
	var s statements
	pool := newPool(t, relaytest.Migrated(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = &s })
	tx, err := pool.Begin(t.Context())
	relaytest.Must(err)
	q := outboxpgx.Querier(tx)
	_, err = outboxpgx.Enqueue(t.Context(), tx, "T", 1)
	relaytest.Must(err)
	_, err = outboxpgx.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{{Type: "T"}, {Type: "T"}})
	relaytest.Must(err)
	_, err = outbox.Stats(t.Context(), q)
	relaytest.Must(err)
	result, err := q.ExecContext(t.Context(), `UPDATE outbox.task SET priority = 1`)
	relaytest.Must(err)
	if n, err := result.RowsAffected(); n != 3 || err != nil {
		t.Errorf("%d rows, %v; want 3", n, err)
	}
	relaytest.Must(tx.Commit(t.Context()))
	var got []string
	for _, sent := range s.sent {
		first, _, _ := strings.Cut(sent, "\n")
		got = append(got, first)
	}
	want := []string{"begin", `/* outbox: enqueue */`, `/* outbox: enqueue many */`, `/* outbox: stats */`,
		`UPDATE outbox.task SET priority = 1`, "commit"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Querier returns the values of pgx's own driver for database/sql, in each mode.
func TestTheBridgeReturnsTheValuesOfPgxForDatabaseSQL(t *testing.T) {
	url := relaytest.Migrated(t)
	db := relaytest.Direct(t, url, "pgx")
	const query = `SELECT true, 1::int2, 2::int4, 3::int8, 4::oid, 0.5::float4, 0.25::float8, 'text', 'x'::varchar,
		'n'::name,
		'\x00ff'::bytea, '{"a": 1}'::jsonb, '[1]'::json, timestamptz '2020-02-03 04:05:06.789+02', date '2020-02-03',
		timestamp '2020-02-03 04:05', 1.50::numeric, '{a,NULL,"b c"}'::text[], '{1,2}'::int8[], interval '1 day',
		'00000000-0000-0000-0000-000000000007'::uuid,
		NULL::bool, NULL::int8, NULL::text, NULL::bytea, NULL::jsonb, NULL::timestamptz, NULL::float8
		FROM generate_series(1, 2)`
	read := func(q outbox.Querier) (columns []string, all [][]any) {
		t.Helper()
		found, err := q.QueryContext(t.Context(), query)
		relaytest.Must(err)
		defer found.Close()
		columns, err = found.Columns()
		relaytest.Must(err)
		for found.Next() {
			row := make([]any, len(columns))
			into := make([]any, len(columns))
			for i := range row {
				into[i] = &row[i]
			}
			relaytest.Must(found.Scan(into...))
			all = append(all, row)
		}
		relaytest.Must(found.Err())
		return columns, all
	}
	columns, want := read(db)
	for _, mode := range modes {
		tx, err := newPool(t, url, inMode(mode)).Begin(t.Context())
		relaytest.Must(err)
		names, got := read(outboxpgx.Querier(tx))
		relaytest.Must(tx.Rollback(t.Context()))
		if !slices.Equal(names, columns) || len(got) != 2 {
			t.Errorf("%v: %d rows of the columns %v, want 2 of %v", mode, len(got), names, columns)
			continue
		}
		for i := range want[1] {
			if !reflect.DeepEqual(got[1][i], want[1][i]) {
				t.Errorf("%v: column %d: got %T %v, want %T %v", mode, i, got[1][i], got[1][i], want[1][i], want[1][i])
			}
		}
	}
}

// The transaction goes on after rows that were not read, and after no row.
func TestRowsThatAreClosedLeaveTheTransaction(t *testing.T) {
	pool := newPool(t, relaytest.Migrated(t))
	tx, err := pool.Begin(t.Context())
	relaytest.Must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	q := outboxpgx.Querier(tx)
	found, err := q.QueryContext(t.Context(), `SELECT generate_series(1, 1000)`)
	relaytest.Must(err)
	if !found.Next() {
		t.Error("no row")
	}
	relaytest.Must(found.Close())
	var n int
	if err := q.QueryRowContext(t.Context(), `SELECT 1 WHERE false`).Scan(&n); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("got %v, want sql.ErrNoRows", err)
	}
	late, err := q.QueryContext(t.Context(), `SELECT 1 / (500 - n) FROM generate_series(1, 1000) n`)
	relaytest.Must(err)
	for late.Next() {
		n++
	}
	var of *pgconn.PgError
	if err := late.Err(); !errors.As(err, &of) || of.Code != "22012" {
		t.Errorf("got %v after %d rows, want 22012", err, n)
	}
	if _, err := q.ExecContext(t.Context(), `SELECT $1::int`, sql.Named("n", 1)); err == nil {
		t.Error("a named parameter is taken")
	}
}
