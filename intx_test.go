package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/wake"
)

// helper is InTx or SqlxInTx over one of the drivers.
type helper struct {
	name, driver string
	inTx         func(ctx context.Context, db *sql.DB, fn func(outbox.Querier) error, opts ...outbox.TxOption) error
}

func plain(ctx context.Context, db *sql.DB, fn func(outbox.Querier) error, opts ...outbox.TxOption) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return fn(tx) }, opts...)
}

func extended(ctx context.Context, db *sql.DB, fn func(outbox.Querier) error, opts ...outbox.TxOption) error {
	return outbox.SqlxInTx(ctx, sqlx.NewDb(db, "postgres"), func(tx *sqlx.Tx) error { return fn(tx) }, opts...)
}

// onEveryHelper runs a test with each helper; db's pool is the test's own.
func onEveryHelper(t *testing.T, test func(t *testing.T, h helper, d database, db *sql.DB)) {
	t.Helper()
	d := newDatabase(t)
	for _, h := range []helper{{"InTx_lib_pq", "postgres", plain}, {"InTx_pgx", "pgx", plain},
		{"SqlxInTx_lib_pq", "postgres", extended}} {
		t.Run(h.name, func(t *testing.T) { test(t, h, d, open(t, h.driver, d.url)) })
	}
}

// countWakes counts the calls of the relays of this process until the test ends.
// Tests that use it are not parallel: another test would wake the relays too.
func countWakes(t *testing.T, also func()) *atomic.Int64 {
	var n atomic.Int64
	t.Cleanup(wake.Register(func() { n.Add(1); also() }))
	return &n
}

func enqueue(ctx context.Context, tx outbox.Querier, name string) error {
	_, err := outbox.Enqueue(ctx, tx, name, 1)
	return err
}

func TestInTxCommitsAndThenWakesTheRelaysOfTheProcess(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		name, visible := newType(), -1
		wakes := countWakes(t, func() { visible = len(rows(t, d.db, name)) })
		must(h.inTx(t.Context(), db, func(tx outbox.Querier) error { return enqueue(t.Context(), tx, name) }))
		if wakes.Load() != 1 || visible != 1 {
			t.Errorf("got %d wake-ups that saw %d tasks, want 1 and 1", wakes.Load(), visible)
		}
	})
}

func TestWakeWakesTheRelaysOfTheProcess(t *testing.T) {
	wakes := countWakes(t, func() {})
	outbox.Wake()
	if wakes.Load() != 1 {
		t.Errorf("got %d wake-ups, want 1", wakes.Load())
	}
}

func TestInTxRollsBackWhateverEndsTheFunction(t *testing.T) {
	failed := errors.New("no")
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		wakes := countWakes(t, func() {})
		for about, c := range map[string]struct {
			end  func(cancel func()) error
			want any // as it is
		}{
			"error":                        {func(func()) error { return failed }, failed},
			"panic":                        {func(func()) error { panic(failed) }, failed},
			"Goexit":                       {func(func()) error { runtime.Goexit(); return nil }, "Goexit"},
			"the context before it begins": {nil, context.Canceled},
			"its context":                  {func(cancel func()) error { cancel(); return nil }, context.Canceled},
		} {
			name, done := newType(), make(chan any, 1)
			ctx, cancel := context.WithCancel(t.Context())
			if c.end == nil {
				cancel()
			}
			go func() {
				var err any = "Goexit"
				defer func() {
					if p := recover(); p != nil {
						err = p
					}
					done <- err
				}()
				err = h.inTx(ctx, db, func(tx outbox.Querier) error {
					if err := enqueue(t.Context(), tx, name); err != nil || c.end == nil {
						t.Errorf("%s: called, %v", about, err)
					}
					return c.end(cancel)
				})
			}()
			if got := <-done; got != c.want {
				t.Errorf("%s: got %v, want %v", about, got, c.want)
			}
			cancel()
			wantTasks(t, d.db, name, 0)
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%s: %d connections are in use still", about, n)
			}
		}
		if wakes.Load() != 0 {
			t.Errorf("got %d wake-ups, want 0", wakes.Load())
		}
	})
}

func TestInTxReportsThatItCouldNotBegin(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		never := func(outbox.Querier) error {
			t.Error("called without a transaction")
			return nil
		}
		err := h.inTx(t.Context(), direct(t, h.driver, "postgres://127.0.0.1:1/nowhere"), never)
		if err == nil || errors.Is(err, outbox.ErrCommitUnknown) || !strings.HasPrefix(err.Error(), "outbox: begin: ") {
			t.Errorf("got %v, want an error of begin", err)
		}
		db.SetMaxOpenConns(1)
		begin(t, db)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := h.inTx(ctx, db, never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no connection is free: got %v, want context.DeadlineExceeded", err)
		}
	})
}

// F2: the connection fails around the COMMIT, or the COMMIT fails.
func TestInTxTellsWhenTheOutcomeOfTheCommitIsUnknown(t *testing.T) {
	const request, reply = proxy.LoseRequest, proxy.LoseReply
	onEveryHelper(t, func(t *testing.T, h helper, d database, _ *sql.DB) {
		exec(t, d.db, `CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY)`)
		exec(t, d.db, `CREATE TABLE IF NOT EXISTS child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
		p, url := relaytest.Through(t, d.url)
		for _, c := range []struct {
			statement          string
			lose               []proxy.How
			unknown, committed bool
		}{
			{`INSERT INTO child VALUES (1)`, nil, false, false}, // refused by the COMMIT
			{`SELECT 1/0`, nil, false, false},
			{`SELECT 'the reply is lost'`, []proxy.How{reply}, true, true},
			{`SELECT 'the request is lost'`, []proxy.How{request}, true, false},
		} {
			for _, how := range c.lose {
				p.Set(&proxy.Trap{Catches: proxy.Commit(c.statement), How: how})
			}
			wakes := countWakes(t, func() {})
			name, calls := newType(), 0
			err := h.inTx(t.Context(), open(t, h.driver, url), func(tx outbox.Querier) error {
				calls++
				err := enqueue(t.Context(), tx, name)
				_, _ = tx.ExecContext(t.Context(), c.statement)
				return err
			})
			want := "outbox: commit: "
			if c.unknown {
				want = outbox.ErrCommitUnknown.Error()
			}
			if err == nil || errors.Is(err, outbox.ErrCommitUnknown) != c.unknown ||
				!strings.HasPrefix(err.Error(), want) || calls != 1 {
				t.Errorf("%s: got %v after %d calls, want %s after 1", c.statement, err, calls, want)
			}
			if got := len(rows(t, d.db, name)) == 1; got != c.committed {
				t.Errorf("%s: committed is %v, want %v", c.statement, got, c.committed)
			}
			if got := wakes.Load() == 1; got != c.unknown {
				t.Errorf("%s: it woke relays: %v, want %v, as there may be a task", c.statement, got, c.unknown)
			}
		}
	})
}

func TestInTxDoesNotCutACommitShortWhenItsContextEnds(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		exec(t, d.db, `DROP TABLE IF EXISTS held`)
		exec(t, d.db, `CREATE TABLE held (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
		gate := begin(t, d.db)
		exec(t, gate, `INSERT INTO held VALUES (1)`)
		name, done := newType(), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			done <- h.inTx(ctx, db, func(tx outbox.Querier) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO held VALUES (1)`)
				return errors.Join(err, enqueue(ctx, tx, name))
			})
		}()
		for !scan[bool](t, d.db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock')`) { // in its COMMIT
		}
		cancel()
		for range 20 { // round trips, in which a driver would act on the end of its context
			exec(t, d.db, `SELECT 1`)
		}
		end(t, gate.Rollback)
		if err := <-done; err != nil {
			t.Errorf("got %v, want nil although the context ended", err)
		}
		one(t, d.db, name)
	})
}

type usr struct {
	UserID int64  `json:"user_id"`
	Email  string `json:"mail"`
}

// The transaction has the driver name, the mapper and Unsafe of the DB. That no goroutine is left is
// for TestMain to see.
func TestASqlxTransactionOfAHandlerIsLikeItsDB(t *testing.T) {
	t.Parallel()
	safe := sqlx.NewDb(newDatabase(t).db, "postgres")
	safe.Mapper = reflectx.NewMapperFunc("json", strings.ToLower)
	for about, db := range map[string]*sqlx.DB{"safe": safe, "unsafe": safe.Unsafe()} {
		ctx, task, raw, failed := t.Context(), &outbox.Task[int]{ID: 3}, begin(t, safe.DB), errors.New("no")
		check := func(tx *sqlx.Tx) {
			t.Helper()
			want, got := usr{7, "a@example.com"}, usr{}
			query, args, err := tx.BindNamed(`SELECT CAST(:user_id AS int) AS user_id, CAST(:mail AS text) AS mail`, want)
			if err = errors.Join(err, tx.Get(&got, query, args...)); err != nil || got != want || tx.Tx != raw {
				t.Errorf("%s: got %v, %v; want %v", about, got, err, want)
			}
			if err := tx.Get(&got, `SELECT 1 AS without_a_field`); (err == nil) != (about == "unsafe") {
				t.Errorf("%s: got %v for a column without a field", about, err)
			}
		}
		check(outbox.SqlxTx(db, raw))
		if outbox.SqlxHandler[int](db, nil) != nil {
			t.Error("a nil handler is wrapped, so registration does not refuse it")
		}
		h := outbox.SqlxHandler(db, func(c context.Context, tx *sqlx.Tx, got *outbox.Task[int]) error {
			if c != ctx || got != task {
				t.Errorf("got %v and %v, want the caller's", c, got)
			}
			check(tx)
			return failed
		})
		for range 2 { // the handler is built once and called often
			if err := h(ctx, raw, task); err != failed {
				t.Errorf("got %v, want %v", err, failed)
			}
		}
	}
}

func TestInTxTakesAnIsolationLevel(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, _ database, db *sql.DB) {
		for _, c := range []struct {
			opts []outbox.TxOption
			want string
		}{
			{nil, "read committed"},
			{[]outbox.TxOption{outbox.Isolation(sql.LevelDefault)}, "read committed"},
			{[]outbox.TxOption{outbox.Isolation(sql.LevelRepeatableRead)}, "repeatable read"},
			{[]outbox.TxOption{outbox.Isolation(sql.LevelDefault), outbox.Isolation(sql.LevelSerializable)}, "serializable"},
		} {
			must(h.inTx(t.Context(), db, func(tx outbox.Querier) error {
				if got := scan[string](t, tx, `SHOW transaction_isolation`); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				return nil
			}, c.opts...))
		}
		never := func(outbox.Querier) error { panic("called") }
		err := h.inTx(t.Context(), db, never, outbox.Isolation(sql.LevelLinearizable))
		if err == nil || !strings.HasPrefix(err.Error(), "outbox: begin: ") {
			t.Errorf("a level that PostgreSQL does not have: %v", err)
		}
		err = h.inTx(t.Context(), db, never, outbox.Isolation(sql.LevelSerializable), nil)
		if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), "a TxOption is nil") {
			t.Errorf("a nil option: %v, want ErrInvalidOption that names it", err)
		}
	})
}

// The error of a statement comes by fn, that of the COMMIT by InTx itself.
func TestASerializationFailureIsToldByBothDrivers(t *testing.T) {
	onEveryHelper(t, func(t *testing.T, h helper, d database, db *sql.DB) {
		ctx := t.Context()
		for code, want := range map[string]bool{"40001": true, "40P01": true, "40002": false, "40003": false,
			"23505": false, "55P03": false, "57014": false, "25P02": false} {
			err := h.inTx(ctx, db, func(tx outbox.Querier) error {
				_, err := tx.ExecContext(ctx, fmt.Sprintf(`DO $$ BEGIN RAISE 'no' USING ERRCODE = '%s'; END $$`, code))
				return fmt.Errorf("book: %w", err)
			})
			if got := outbox.IsSerializationFailure(err); got != want || err == nil {
				t.Errorf("%s: %v, want %v: %v", code, got, want, err)
			}
		}
		exec(t, d.db, `DROP TABLE IF EXISTS seat`)
		exec(t, d.db, `CREATE TABLE seat (n int)`)
		book := func(tx outbox.Querier, n int) {
			scan[int](t, tx, `SELECT count(*) FROM seat`)
			exec(t, tx, fmt.Sprintf(`INSERT INTO seat VALUES (%d)`, n))
		}
		err := h.inTx(ctx, db, func(tx outbox.Querier) error {
			book(tx, 1)
			return h.inTx(ctx, db, func(other outbox.Querier) error { book(other, 2); return nil }, serializable)
		}, serializable)
		if !outbox.IsSerializationFailure(err) || !strings.HasPrefix(err.Error(), "outbox: commit: ") {
			t.Errorf("got %v, want a serialization failure of the COMMIT", err)
		}
		for _, err := range []error{nil, errors.New("40001"), context.Canceled, outbox.ErrCommitUnknown} {
			if outbox.IsSerializationFailure(err) {
				t.Errorf("%v is none", err)
			}
		}
	})
}

var serializable = outbox.Isolation(sql.LevelSerializable)
