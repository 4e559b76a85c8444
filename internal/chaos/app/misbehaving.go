//go:build unix

package app

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
)

// Misbehaviors are the ways in which a handler misbehaves. All that it wrote is gone afterwards,
// and its task becomes a dead letter.
var Misbehaviors = []string{
	"panic", "panic(nil)", "goexit", "error", "no savepoint", "hidden", "rows", "rows and error", "deferred",
	"roll back", "roll back in SQL", "endless", "text",
}

func misbehave(ctx context.Context, tx *sql.Tx, how string) error {
	switch how {
	case "panic":
		panic("chaos: the handler panics")
	case "panic(nil)":
		panic(nil)
	case "no savepoint":
		_, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT another`)
		return err
	case "goexit":
		runtime.Goexit()
	case "hidden":
		_, _ = tx.ExecContext(ctx, `SELECT 1/0`)
		return nil
	case "rows", "rows and error":
		rows, err := tx.QueryContext(ctx, `SELECT repeat('x', 100) FROM generate_series(1, 10000)`)
		if err != nil {
			return err
		}
		rows.Next() // and is left open
		if how == "rows" {
			return nil
		}
	case "deferred":
		_, err := tx.ExecContext(ctx, `INSERT INTO deferred VALUES (-1)`)
		return err
	case "roll back":
		return errors.Join(errAsked, tx.Rollback())
	case "roll back in SQL":
		_, err := tx.ExecContext(ctx, `ROLLBACK`)
		return errors.Join(errAsked, err)
	case "endless":
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return err
	case "text":
		return errors.New("chaos: \x00 \xff " + string(make([]byte, 1<<20)))
	}
	return errAsked
}

// Commits are the ways in which a handler commits the transaction of its claim. It fails then, and
// its task becomes a dead letter at once.
var Commits = []string{"tx.Commit", "COMMIT", "COMMIT; BEGIN"}

func commit(ctx context.Context, tx *sql.Tx, how string) error {
	if how == "tx.Commit" {
		return errors.Join(errAsked, tx.Commit())
	}
	_, err := tx.ExecContext(ctx, how)
	return errors.Join(errAsked, err)
}
