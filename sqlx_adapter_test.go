package outbox_test

import (
	"context"
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
