package relay_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/txoutbox/outbox"
)

var errMisdeed = errors.New("misdeed")

// fails is misdeeds that are followed by an error.
func fails(err error, do ...misdeed) misdeed {
	return func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error {
		errs := []error{err}
		for _, one := range do {
			errs = append(errs, one(ctx, m, tx))
		}
		return errors.Join(errs...)
	}
}

func execs(statements ...string) misdeed {
	return func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error {
		for _, s := range statements {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	}
}

// hides does statements and keeps their errors to itself.
func hides(statements ...string) misdeed {
	return func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error {
		for _, s := range statements {
			_, _ = tx.ExecContext(ctx, s)
		}
		return nil
	}
}

// opensRows leaves a result unread, under a context that ends with the handler or not at all.
func opensRows(own bool) misdeed {
	return func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error {
		if !own {
			ctx = context.Background()
		}
		rows, err := tx.QueryContext(ctx, `SELECT n, repeat('x', 100) FROM generate_series(1, 100000) n`)
		if err == nil && !rows.Next() {
			err = rows.Err()
		}
		return err
	}
}

func panics(p any) misdeed {
	return func(context.Context, *misbehavingRelay, outbox.Tx) error { panic(p) }
}

func secondConnection(ctx context.Context, m *misbehavingRelay, _ outbox.Tx) error {
	_, err := m.db.ExecContext(ctx, `INSERT INTO aside VALUES (1)`)
	return err
}

func misbehavingHandlers() []misbehavingHandler {
	return []misbehavingHandler{
		{name: "good", act: fails(nil), fate: done},
		{name: "error", act: fails(errMisdeed), fate: exhausted, text: "misdeed"},
		{name: "panic", act: panics("aaargh"), fate: exhausted, text: "panic: aaargh"},
		{name: "panic_nil", act: panics(nil), fate: exhausted, text: "panic"},
		{name: "goexit", fate: exhausted, text: "Goexit", act: func(context.Context, *misbehavingRelay, outbox.Tx) error {
			runtime.Goexit()
			return nil
		}},
		{name: "error_of_1MB", act: fails(errors.New(strings.Repeat("é", 1<<19))), fate: exhausted, text: "ééé"},
		{name: "error_with_NUL", act: fails(errors.New("nul\x00nul")), fate: exhausted, text: "nul\uFFFDnul"},
		{name: "error_not_UTF8", act: fails(errors.New("bad \xff\xc3 utf8")), fate: exhausted, text: "bad \uFFFD utf8"},

		{name: "rows_open_nil", act: opensRows(false), fate: exhausted, text: "rows not closed"},
		{name: "rows_open_error", act: fails(errMisdeed, opensRows(false)), fate: exhausted, text: "misdeed"},
		{name: "rows_open_with_context_nil", act: opensRows(true), fate: exhausted, text: "rows not closed"},
		{name: "rows_open_with_context_error", act: fails(errMisdeed, opensRows(true)), fate: exhausted, text: "misdeed"},

		{name: "SQL_error", act: execs(`SELECT 1/0`), fate: exhausted, text: "division by zero"},
		{name: "hidden_SQL_error", act: hides(`SELECT 1/0`), fate: exhausted,
			text: "a statement of its transaction had failed"},
		{name: "hidden_SQL_error_then_error", act: fails(errMisdeed, hides(`SELECT 1/0`)), fate: exhausted, text: "misdeed"},
		{name: "deferred_foreign_key", act: execs(`INSERT INTO child VALUES (1)`), fate: exhausted,
			text: "violates foreign key constraint"},
		{name: "deferred_trigger", act: execs(`INSERT INTO checked VALUES (1)`), fate: exhausted, text: "checked late"},
		// The session is put back before COMMIT, which would read the cursor and fail.
		{name: "leaves_a_cursor_that_fails", act: execs(`DECLARE c CURSOR WITH HOLD FOR SELECT 1 / (n - 2)
			FROM generate_series(1, 3) n`), fate: done},
		{name: "changes_timeouts",
			act: fails(errMisdeed,
				execs(`SET LOCAL statement_timeout = 1; SET LOCAL lock_timeout = 1; SET LOCAL search_path = pg_temp`)),
			fate: exhausted, text: "misdeed"},

		{name: "takes_another_role", act: execs(takeRoleSQL, `INSERT INTO aside VALUES (1)`), fate: done},
		{name: "takes_another_role_then_error", act: fails(errMisdeed, execs(takeRoleSQL, `INSERT INTO aside VALUES (1)`)),
			fate: exhausted, text: "misdeed"},
		{name: "second_connection", act: secondConnection, fate: done},
		{name: "second_connection_then_error", act: fails(errMisdeed, secondConnection), fate: exhausted, text: "misdeed"},

		{name: "stuck_in_SQL", slow: true, fate: exhausted, text: "due to statement timeout",
			act: func(_ context.Context, _ *misbehavingRelay, tx outbox.Tx) error {
				_, err := tx.ExecContext(context.Background(), `SELECT pg_sleep(60)`) // only the server can end it
				return err
			}},
		{name: "stuck_in_SQL_with_context", slow: true, act: execs(`SELECT pg_sleep(60)`), fate: exhausted},
		{name: "stuck_until_context_ends", slow: true, fate: exhausted, text: "context deadline exceeded",
			act: func(ctx context.Context, _ *misbehavingRelay, _ outbox.Tx) error {
				<-ctx.Done()
				return ctx.Err()
			}},
		{name: "stuck_for_ever", slow: true, fate: exhausted, text: "abandoned",
			act: func(_ context.Context, m *misbehavingRelay, _ outbox.Tx) error {
				<-m.ended
				return nil
			}},
		{name: "stuck_in_SQL_for_ever", slow: true, txOnly: true, fate: exhausted, text: "abandoned",
			act: func(_ context.Context, _ *misbehavingRelay, tx outbox.Tx) error {
				_, err := tx.ExecContext(context.Background(), `SET LOCAL statement_timeout = 0; SELECT pg_sleep(3600)`)
				return err
			}},
		{name: "kills_its_backend", act: execs(`SELECT pg_terminate_backend(pg_backend_pid())`), fate: lost,
			text: "lost their connection"},
		{name: "own_timeout", fate: exhausted,
			act: ownTimeout(func(err error) error { return fmt.Errorf("in time: %w", err) }), text: "in time: "},
		{name: "own_timeout_hidden", fate: lost, act: ownTimeout(func(error) error { return nil }),
			text: "lost their connection"},
	}
}

// ownTimeout ends a statement by a context of the handler's own, once the server is at it; drivers
// close the connection then.
func ownTimeout(result func(error) error) misdeed {
	return func(ctx context.Context, m *misbehavingRelay, tx outbox.Tx) error {
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer cancel()
			for running := false; !running && own.Err() == nil; {
				_ = m.db.QueryRowContext(ctx, `SELECT count(*) > 0, pg_sleep(0.01) FROM pg_stat_activity
					WHERE pid = $1 AND state = 'active' AND query LIKE '%pg_sleep(60)%'`, pid).Scan(&running, new(string))
			}
		}()
		_, err := tx.ExecContext(own, `SELECT pg_sleep(60)`)
		return result(err)
	}
}
