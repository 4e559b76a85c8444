package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"

	"github.com/txoutbox/outbox"
)

type usr struct {
	UserID int64  `json:"user_id"`
	Email  string `json:"mail"`
}

// That no goroutine is left is for TestMain to see.
func TestASqlxTransactionOfAHandlerIsLikeItsDB(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE TABLE usr (user_id bigint, mail text)`)
	for _, driver := range []string{"postgres", "pgx"} {
		safe := sqlx.NewDb(direct(t, driver, d.url), driver)
		safe.Mapper = reflectx.NewMapperFunc("json", strings.ToLower)
		for about, db := range map[string]*sqlx.DB{"safe": safe, "unsafe": safe.Unsafe()} {
			check := func(tx *sqlx.Tx, raw *sql.Tx) {
				t.Helper()
				if tx.Tx != raw || tx.Mapper != db.Mapper || tx.DriverName() != driver {
					t.Errorf("got another transaction, mapper or driver name (%q)", tx.DriverName())
				}
				want := usr{7, "a@example.com"}
				if _, err := tx.NamedExecContext(t.Context(),
					`INSERT INTO usr (user_id, mail) VALUES (:user_id, :mail)`, want); err != nil {
					t.Error(err)
				}
				var got usr
				if err := tx.GetContext(t.Context(), &got, tx.Rebind(`SELECT user_id, mail FROM usr WHERE user_id = ?`),
					7); err != nil || got != want {
					t.Errorf("got %v, %v; want %v", got, err, want)
				}
				if err := tx.Get(&got, `SELECT user_id, mail, 1 AS without_a_field
					FROM usr`); (err == nil) != (about == "unsafe") {
					t.Errorf("%s: got %v for a column without a field", about, err)
				}
			}
			type key struct{}
			failed := errors.New("no")
			ctx, task, raw := context.WithValue(t.Context(), key{}, 1), &outbox.Task[int]{ID: 3}, begin(t, safe.DB)
			check(outbox.SqlxTx(db, raw), raw)
			h := outbox.SqlxHandler(db, func(c context.Context, tx *sqlx.Tx, got *outbox.Task[int]) error {
				if c != ctx || got != task {
					t.Errorf("got %v and %v, want the caller's", c, got)
				}
				check(tx, raw)
				return failed
			})
			for range 2 { // the handler is built once and called often
				end(t, raw.Rollback)
				raw = begin(t, safe.DB)
				if err := h(ctx, raw, task); err != failed {
					t.Errorf("got %v, want %v", err, failed)
				}
			}
			end(t, raw.Rollback)
		}
		if n := safe.Stats().OpenConnections; n != 1 {
			t.Errorf("%d connections were opened, want the one of the transactions", n)
		}
	}
}
