package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Recording from outside the claim's transaction, which is gone: the task is back as it was, or
// still locked by a backend that has not noticed, or another relay has it already. Those locks are
// not waited for. The iteration and the payload are compared too, as attempt begins anew with each.
const LockBackSQL = `/* outbox: lock a task whose claim is gone */
SELECT 1 FROM outbox.task WHERE task_id = $1 AND attempt = $2 AND iterations = $3 AND payload = $4::jsonb AND state <> 'leased' FOR UPDATE SKIP LOCKED`

const deleteBackSQL = `/* outbox: take a task whose claim is gone */
DELETE FROM outbox.task WHERE task_id = $1`

const delaySQL = `/* outbox: delay a task whose claim is gone */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE task_id = $1`

// A run without a living relay is an attempt, for whoever claims the task next.
const orphanRunSQL = `/* outbox: let a run count as lost */
UPDATE outbox.running SET relay_id = '00000000-0000-0000-0000-000000000000' WHERE task_id = $1 AND token = $2::uuid`

// RecordAside writes what becomes of a task whose claim is gone, if it can be had.
func (s *Store) RecordAside(t *Row, next Change) (found bool, err error) {
	err = s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		if found, err = s.locked(ctx, tx, t); err != nil || !found {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.SQL(deleteBackSQL), t.ID); err != nil {
			return err
		}
		if next.Reason != "" {
			return s.WriteDead(ctx, tx, t, next)
		}
		return s.WriteBack(ctx, tx, t, next)
	})
	return found, err
}

// OrphanRun lets a run count as lost, whoever claims its task next.
func (s *Store) OrphanRun(t *Row, token string) error {
	return s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.SQL(orphanRunSQL), t.ID, token)
		return err
	})
}

// Delay puts a task off whose claim is gone, if it can be had.
func (s *Store) Delay(ctx context.Context, t *Row, wait time.Duration) error {
	return s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if found, err := s.locked(ctx, tx, t); err != nil || !found {
			return err
		}
		_, err := tx.ExecContext(ctx, s.SQL(delaySQL), t.ID, wait.Microseconds())
		return err
	})
}

func (s *Store) locked(ctx context.Context, tx *sql.Tx, t *Row) (bool, error) {
	var found int
	err := tx.QueryRowContext(ctx, s.SQL(LockBackSQL), t.ID, t.Attempt, t.uses().Iterations, t.Payload).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// TransactionStatus is "committed" or "aborted": what became of a transaction that is not open any
// more.
func (s *Store) TransactionStatus(xid string) (status string, err error) {
	for try := range 10 {
		if try > 0 {
			time.Sleep(time.Duration(try) * 20 * time.Millisecond) // its backend has not noticed yet
		}
		status, err = s.StatusOf(xid)
		if err == nil && status != "in progress" {
			return status, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("relay: transaction %s is still %s", xid, status)
	}
	return "", err
}

// StatusOf is "in progress", "committed", "aborted" or, for a transaction that is long gone,
// "unknown".
func (s *Store) StatusOf(xid string) (status string, err error) {
	err = s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COALESCE(pg_catalog.pg_xact_status("+
			"$1::pg_catalog.text::pg_catalog.xid8), 'unknown')", xid).Scan(&status)
	})
	return status, err
}
