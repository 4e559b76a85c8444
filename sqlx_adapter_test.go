package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"

	"github.com/txoutbox/outbox"
)

type usr struct {
	UserID int64  `json:"user_id"`
	Email  string `json:"mail"`
}

// adapted calls f with what a handler gets, and with what SqlxTx makes, for a transaction begun by database/sql.
func adapted(t *testing.T, db *sqlx.DB, f func(about string, tx *sqlx.Tx, raw *sql.Tx)) {
	t.Helper()
	raw := begin(t, db.DB)
	f("SqlxTx", outbox.SqlxTx(db, raw), raw)
	end(t, raw.Rollback)
	handler := outbox.SqlxHandler(db, func(_ context.Context, tx *sqlx.Tx, task *outbox.Task[int]) error {
		f("SqlxHandler", tx, raw)
		return nil
	})
	for range 2 { // the handler is built once and called often
		raw = begin(t, db.DB)
		if err := handler(t.Context(), raw, nil); err != nil {
			t.Error(err)
		}
		end(t, raw.Rollback)
	}
}

func TestASqlxTransactionOfAHandlerHasTheNamesOfItsDB(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE usr (user_id bigint, mail text, extra int DEFAULT 1)`)
	for _, driverName := range []string{"postgres", "pgx"} {
		db := sqlx.NewDb(open(t, driverName, d.url), driverName)
		db.Mapper = reflectx.NewMapperFunc("json", strings.ToLower)
		adapted(t, db, func(about string, tx *sqlx.Tx, raw *sql.Tx) {
			if tx.Tx != raw || tx.Mapper != db.Mapper || tx.DriverName() != driverName {
				t.Errorf("%s: got another transaction, mapper or driver name (%q)", about, tx.DriverName())
			}
			want := usr{7, "a@example.com"}
			if _, err := tx.NamedExecContext(t.Context(), `INSERT INTO usr (user_id, mail) VALUES (:user_id, :mail)`, want); err != nil {
				t.Errorf("%s: %v", about, err)
			}
			found, err := tx.NamedQuery(`SELECT user_id, mail FROM usr WHERE mail = :mail`, want)
			if err != nil {
				t.Fatalf("%s: %v", about, err)
			}
			var got []usr
			if err := sqlx.StructScan(found, &got); err != nil || !reflect.DeepEqual(got, []usr{want}) {
				t.Errorf("%s: got %v, %v; want %v", about, got, err, want)
			}
			var u usr
			if err := tx.GetContext(t.Context(), &u, tx.Rebind(`SELECT user_id, mail FROM usr WHERE user_id = ?`), 7); err != nil || u != want {
				t.Errorf("%s: got %v, %v; want %v", about, u, err, want)
			}
			name := newType()
			if _, err := outbox.Enqueue(t.Context(), tx, name, 1); err != nil {
				t.Errorf("%s: %v", about, err)
			}
			one(t, raw, name)
		})
	}
}

func TestASqlxTransactionOfAHandlerIsAsSafeAsItsDB(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	db := sqlx.NewDb(d.db, "postgres")
	var u struct{ A int }
	adapted(t, db, func(about string, tx *sqlx.Tx, _ *sql.Tx) {
		if err := tx.Get(&u, `SELECT 1 AS a, 2 AS b`); err == nil {
			t.Errorf("%s: got no error for a column without a field", about)
		}
	})
	adapted(t, db.Unsafe(), func(about string, tx *sqlx.Tx, _ *sql.Tx) {
		if err := tx.Get(&u, `SELECT 1 AS a, 2 AS b`); err != nil {
			t.Errorf("%s: of an unsafe DB: %v", about, err)
		}
	})
}

func TestASqlxHandlerPassesOnTaskContextAndError(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	type key struct{}
	failed := errors.New("no")
	ctx, task := context.WithValue(t.Context(), key{}, 1), &outbox.Task[int]{ID: 3}
	h := outbox.SqlxHandler(sqlx.NewDb(d.db, "postgres"), func(c context.Context, _ *sqlx.Tx, got *outbox.Task[int]) error {
		if c != ctx || got != task {
			t.Errorf("got %v and %v, want the caller's", c, got)
		}
		return failed
	})
	if err := h(ctx, begin(t, d.db), task); err != failed {
		t.Errorf("got %v, want %v", err, failed)
	}
}

// refusing is a driver that no connection can be had from.
type refusing struct{ asked *int }

func (r refusing) Connect(context.Context) (driver.Conn, error) {
	*r.asked++
	return nil, errors.New("no connection")
}
func (r refusing) Driver() driver.Driver { return nil }

func TestBuildingASqlxTransactionOpensNoConnectionAndLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	raw := begin(t, d.db)
	asked := 0
	pool := sql.OpenDB(refusing{&asked})
	defer pool.Close()
	db := sqlx.NewDb(pool, "postgres")
	before := runtime.NumGoroutine()
	for range 50 {
		outbox.SqlxTx(db, raw)
		outbox.SqlxHandler(db, func(context.Context, *sqlx.Tx, *outbox.Task[int]) error { return nil })
	}
	if asked != 0 || pool.Stats().OpenConnections != 0 {
		t.Errorf("asked for %d connections, want 0", asked)
	}
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("got %d goroutines, want %d", runtime.NumGoroutine(), before)
		}
	}
}
