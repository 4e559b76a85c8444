package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
)

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
