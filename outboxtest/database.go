package outboxtest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/run"
)

// newDatabase is where Drain works.
func newDatabase(ctx context.Context, in outbox.Querier) (run.Database, error) {
	var tx *sql.Tx
	var db *sql.DB
	switch in := in.(type) {
	case *sql.Tx:
		tx = in
	case *sqlx.Tx:
		if in != nil {
			tx = in.Tx
		}
	case *sql.DB:
		db = in
	case *sqlx.DB:
		if in != nil {
			db = in.DB
		}
	default:
		return nil, fmt.Errorf("outboxtest: Drain works in a *sql.Tx, *sqlx.Tx, *sql.DB or *sqlx.DB, not in a %T", in)
	}
	switch {
	case tx != nil:
		return newHeld(ctx, tx)
	case db != nil:
		return pool{db}, nil
	}
	return nil, fmt.Errorf("outboxtest: the %T is nil", in)
}

// pool is a database whose transactions Drain begins and commits itself.
type pool struct{ db *sql.DB }

func (p pool) InTx(ctx context.Context, f func(*sql.Tx) error) error {
	return outbox.InTx(ctx, p.db, f)
}

// keptSettings are the settings of the test's transaction that a claim or a handler changes by SET LOCAL.
var keptSettings = []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "search_path", "role"}

// held is a transaction of the test's, in which each transaction of Drain is a savepoint.
type held struct {
	tx      *sql.Tx
	free    chan struct{} // one use at a time
	restore string
	values  []any // of the kept settings
}

func newHeld(ctx context.Context, tx *sql.Tx) (*held, error) {
	h := &held{tx: tx, free: make(chan struct{}, 1)}
	var get, set []string
	values := make([]string, len(keptSettings))
	into := make([]any, len(keptSettings))
	for i, name := range keptSettings {
		get = append(get, "current_setting('"+name+"')")
		set = append(set, fmt.Sprintf("set_config('%s', $%d, true)", name, i+1))
		into[i] = &values[i]
	}
	if err := tx.QueryRowContext(ctx, "SELECT "+strings.Join(get, ", ")).Scan(into...); err != nil {
		return nil, fmt.Errorf("outboxtest: the transaction is not usable: %w", err)
	}
	h.restore = "SELECT " + strings.Join(set, ", ")
	for _, v := range values {
		h.values = append(h.values, v)
	}
	return h, nil
}

const savepoint = "outboxtest"

func (h *held) InTx(ctx context.Context, f func(*sql.Tx) error) (err error) {
	select {
	case h.free <- struct{}{}:
		defer func() { <-h.free }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := h.tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return err
	}
	kept := false
	defer func() { // also after a panic and Goexit
		if kept {
			return
		}
		_, undoErr := h.tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO SAVEPOINT "+savepoint+"; RELEASE SAVEPOINT "+savepoint)
		if err != nil && undoErr != nil {
			err = fmt.Errorf("%w (and the test's transaction cannot be used any more: %v)", err, undoErr)
		}
	}()
	if err := f(h.tx); err != nil {
		return err
	}
	if _, err := h.tx.ExecContext(ctx, h.restore, h.values...); err != nil {
		return err
	}
	_, err = h.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	kept = err == nil
	return err
}
