package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// What becomes of the task of a handler that misbehaves.
const (
	done      = "done with 1 effects"
	failed    = "attempts with 0 effects"
	committed = "committed with 1 effects"        // its handler committed and then failed; the effect stands
	lost      = "lost_connections with 0 effects" // after ten of them
)

// misdeed is what a handler does after its effects.
type misdeed struct {
	do         func(ctx context.Context, tx *sql.Tx) error
	fate       string
	text       string // in the dead letter's last_error
	inComplete string // is the text of a failure where Complete has another one
	slow       bool   // runs into its timeout
	slowest    bool   // takes too long for a batch, whose tasks run again one by one
}

var errMisdeed = errors.New("misdeed")

// execs does statements, and returns the first error, or else the result.
func execs(result error, statements ...string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return result
	}
}

// hides does statements and keeps their errors to itself.
func hides(statements ...string) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		for _, s := range statements {
			_, _ = tx.ExecContext(ctx, s)
		}
		return nil
	}
}

// unread leaves a result unread, under a context that ends with the handler or not at all.
func unread(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, `SELECT n, repeat('x', 100) FROM generate_series(1, 100000) n`)
	if err == nil && !rows.Next() {
		err = rows.Err()
	}
	return err
}

// forEver does statements that only the server can end.
func forEver(statements string) func(context.Context, *sql.Tx) error {
	return func(_ context.Context, tx *sql.Tx) error {
		return execs(nil, statements)(context.Background(), tx)
	}
}

// misdeeds are those of handlers. One is stuck until ended is closed.
func misdeeds(ended chan struct{}) map[string]misdeed {
	const write = `INSERT INTO late VALUES ('late')`
	const hidden, rolledBack = "a statement of its transaction had failed", "rolled the transaction of its claim back"
	const inComplete = "rolled its transaction back"
	return map[string]misdeed{
		"nil":   {do: execs(nil), fate: done},
		"error": {do: execs(errMisdeed), fate: failed, text: "misdeed"},
		"Goexit": {do: func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil },
			fate: failed, text: "Goexit"},
		"panic(nil)": {do: func(context.Context, *sql.Tx) error { panic(nil) }, fate: failed, text: "panic"},
		"error that no column takes": {do: execs(errors.New("nul\x00 \xff\xc3 " + strings.Repeat("é", 1<<19))),
			fate: failed, text: "nul\uFFFD \uFFFD ééé"},

		"rows open": {do: func(_ context.Context, tx *sql.Tx) error { return unread(context.Background(), tx) },
			fate: failed, text: "rows not closed"},
		"rows open with context": {do: unread, fate: failed, text: "rows not closed"},
		"SQL error":              {do: execs(nil, `SELECT 1/0`), fate: failed, text: "division by zero"},
		"hidden SQL error":       {do: hides(`SELECT 1/0`), fate: failed, text: hidden},
		"deferred constraint": {do: execs(nil, `INSERT INTO child VALUES (1)`), fate: failed,
			text: "violates foreign key constraint"},
		// The session is put back before COMMIT, which would read the cursor and fail.
		"cursor that fails": {do: execs(nil, `DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (n - 2)
			FROM generate_series(1, 3) n`), fate: done},

		"stuck in SQL": {slow: true, do: forEver(`SELECT pg_sleep(60)`), fate: failed, text: "due to statement timeout",
			inComplete: "abandoned"}, // Complete's own statement timeout is longer
		"stuck in SQL with context": {slow: true, do: execs(nil, `SELECT pg_sleep(60)`), fate: failed},
		"stuck for ever": {slow: true, do: func(context.Context, *sql.Tx) error { <-ended; return nil },
			fate: failed, text: "abandoned"},
		"stuck in SQL for ever": {slow: true, slowest: true, fate: failed, text: "abandoned",
			do: forEver(`SET LOCAL statement_timeout = 0; SELECT pg_sleep(3600)`)},
		"own timeout": {fate: failed, text: "in time: ", do: func(ctx context.Context, tx *sql.Tx) error {
			own, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return fmt.Errorf("in time: %w", execs(nil, `SELECT pg_sleep(60)`)(own, tx))
		}},
		"lost connection": {do: execs(nil, `SELECT pg_terminate_backend(pg_backend_pid())`), fate: lost,
			text: "lost their connection", inComplete: "pg_terminate_backend"},

		// What a handler commits itself stands. Its task is done or, if it failed after that, a dead letter.
		"COMMIT":        {do: execs(nil, `COMMIT`), fate: done},
		"COMMIT, error": {do: execs(errMisdeed, `COMMIT`), fate: committed, text: "misdeed"},
		"COMMIT and BEGIN": {do: execs(errMisdeed, `COMMIT; BEGIN; SAVEPOINT mine; `+write), fate: committed,
			text: "misdeed"},
		"COMMIT AND CHAIN": {do: execs(nil, `COMMIT AND CHAIN`, write), fate: done},
		"tx.Commit": {do: func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
			fate: done},
		"tx.Commit, panic": {fate: committed, text: "panic: misdeed",
			do: func(_ context.Context, tx *sql.Tx) error {
				_ = tx.Commit()
				panic(errMisdeed)
			}},
		"ROLLBACK":        {do: execs(nil, `ROLLBACK`), fate: failed, text: rolledBack, inComplete: inComplete},
		"ROLLBACK, error": {do: execs(errMisdeed, `ROLLBACK`), fate: failed, text: "misdeed"},
		"ROLLBACK and BEGIN": {do: execs(nil, `ROLLBACK; BEGIN; `+write), fate: failed, text: rolledBack,
			inComplete: inComplete},
		"tx.Rollback": {do: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
			fate: failed, text: rolledBack, inComplete: inComplete},
		"own savepoint": {do: execs(nil, `SAVEPOINT mine`, write, `ROLLBACK TO SAVEPOINT mine`), fate: done},
		"no savepoint":  {do: hides(write, `ROLLBACK TO SAVEPOINT nothing`), fate: failed, text: hidden},
	}
}
