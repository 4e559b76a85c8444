package outboxtest

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
)

// newDatabase is where Drain works.
func newDatabase(ctx context.Context, in outbox.Querier) (database, error) {
	if in != nil && isNil(in) {
		return nil, fmt.Errorf("outboxtest: the %T is nil", in)
	}
	switch in := in.(type) {
	case *sql.Tx:
		return newHeld(ctx, in)
	case *sqlx.Tx:
		return newHeld(ctx, in.Tx)
	case *sql.DB:
		return pool{in}, nil
	case *sqlx.DB:
		return pool{in.DB}, nil
	}
	return nil, fmt.Errorf("outboxtest: Drain works in a *sql.Tx, *sqlx.Tx, *sql.DB or *sqlx.DB, not in a %T", in)
}

// pool is a database whose transactions Drain begins and commits itself.
type pool struct{ db *sql.DB }

func (p pool) InTx(ctx context.Context, f func(*sql.Tx) error) error {
	return outbox.InTx(ctx, p.db, f)
}

// The settings of the test's transaction that a claim or a handler changes by SET LOCAL.
const (
	readSettingsSQL = `SELECT jsonb_object_agg(name, current_setting(name))::text
  FROM unnest('{statement_timeout,lock_timeout,idle_in_transaction_session_timeout,search_path,role}'::text[]) AS name`
	restoreSettingsSQL = `SELECT set_config(key, value, true) FROM jsonb_each_text($1::jsonb)`
)

// held is a transaction of the test's, in which each transaction of Drain is a savepoint.
type held struct {
	tx       *sql.Tx
	free     chan struct{} // one use at a time
	settings string
}

func newHeld(ctx context.Context, tx *sql.Tx) (*held, error) {
	h := &held{tx: tx, free: make(chan struct{}, 1)}
	if err := tx.QueryRowContext(ctx, readSettingsSQL).Scan(&h.settings); err != nil {
		return nil, fmt.Errorf("outboxtest: the transaction is not usable: %w", err)
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
	if _, err := h.tx.ExecContext(ctx, restoreSettingsSQL, h.settings); err != nil {
		return err
	}
	_, err = h.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint)
	kept = err == nil
	return err
}
