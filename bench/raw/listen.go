package raw

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lib/pq"
)

const notifySQL = `/* raw: enqueue */
INSERT INTO bare_task (task_type, payload) VALUES ($1, $2::jsonb)`

const wakeSQL = `/* raw: wake */
SELECT pg_notify('bare', '')`

// Notify enqueues one task in tx and wakes the listeners.
func Notify(ctx context.Context, tx *sql.Tx, taskType, payload string) error {
	if _, err := tx.ExecContext(ctx, notifySQL, taskType, payload); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, wakeSQL)
	return err
}

// Listen claims one task after each notification, until none is left, and tells its payload. There
// is no polling.
func Listen(ctx context.Context, url, taskType string, handle func(payload string)) (stop func() error, err error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	claim, err := conn.PrepareContext(ctx, claimSQL)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	l := pq.NewListener(url, 10*time.Millisecond, time.Second, nil)
	if err := l.Listen("bare"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	ended := make(chan error, 1)
	go func() {
		for range l.Notify {
			for {
				var id int64
				var payload string
				err := claim.QueryRowContext(ctx, taskType, 1).Scan(&id, &payload)
				if errors.Is(err, sql.ErrNoRows) {
					break
				}
				if err != nil {
					ended <- err
					return
				}
				handle(payload)
			}
		}
		ended <- nil
	}()
	return func() error {
		err := l.Close()
		return errors.Join(err, <-ended, conn.Close(), db.Close())
	}, nil
}
