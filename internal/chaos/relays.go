//go:build unix

package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// relays is a relay's process, until ctx ends and it has drained.
func relays(ctx context.Context, c childConfig, db *sql.DB) error {
	side, err := c.open()
	if err != nil {
		return err
	}
	side.SetMaxOpenConns(4)
	h := hands{childConfig: c, side: side, client: &http.Client{Timeout: 5 * time.Second}}
	r, err := relay.New(db, h.register(), relay.Config{
		Workers: 8, PollInterval: 200 * time.Millisecond, ListenDSN: c.URL, DrainTimeout: 10 * time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// hands are the handlers.
type hands struct {
	childConfig
	side   *sql.DB // apart from the relay's pool
	client *http.Client
}

var errAsked = errors.New("chaos: this attempt was to fail")

func (h *hands) register() *handlers.Registry {
	reg := handlers.New()
	soon := handlers.Backoff(func() retry.Backoff { return retry.NewConstant(50 * time.Millisecond) })
	many := handlers.MaxAttempts(1000) // kills are attempts, too
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
		return h.effect(ctx, tx, task)
	}, soon, many)
	handlers.Tx(reg, typeOrdered, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
		return h.effect(ctx, tx, task)
	}, soon, many)
	handlers.Tx(reg, typeCancelable, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
		return h.effect(ctx, tx, task)
	}, soon, many)
	handlers.Batch(reg, typeBatch, 20, h.batch, soon, many)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[work]) error {
		ctx = h.dawdle(ctx, task)
		if task.Attempt > task.Payload.Fail {
			if err := h.call(ctx, task.Payload.K); err != nil {
				return err
			}
		}
		return task.Complete(ctx, func(tx *sql.Tx) error { return h.effect(ctx, tx, task) })
	}, soon, many)
	handlers.Leased(reg, typePlain, func(ctx context.Context, task *outbox.Task[work]) error {
		if task.Attempt <= task.Payload.Fail {
			return errAsked
		}
		ctx = h.dawdle(ctx, task)
		return h.call(ctx, task.Payload.K)
	}, soon, many)
	handlers.Leased(reg, typeKeyed, h.keyed, soon, many)
	handlers.Tx(reg, typePoison, h.poison, soon, handlers.MaxAttempts(poisonStarts))
	handlers.Tx(reg, typeMisbehaves, h.misbehave, soon, handlers.MaxAttempts(3), handlers.Timeout(time.Second))
	handlers.Tx(reg, typeCommits, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[work]) error {
		if err := h.effect(ctx, tx, task); err != nil {
			return err
		}
		return h.commit(ctx, tx, task)
	}, soon, handlers.MaxAttempts(3))
	return reg
}

// effect is what a run of a task leaves: a row, and money that went from one account to another. It
// fails after that, if the task asks for it.
func (h *hands) effect(ctx context.Context, tx outbox.Tx, task *outbox.Task[work]) error {
	if err := h.write(ctx, tx, task); err != nil {
		return err
	}
	if task.ID%8 == 0 {
		from, to := rand.IntN(accounts), rand.IntN(accounts)
		if _, err := tx.ExecContext(ctx, `SELECT FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE`, from, to); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance - 1 WHERE id = $1`, from); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = balance + 1 WHERE id = $1`, to); err != nil {
			return err
		}
	}
	if task.Attempt <= task.Payload.Fail {
		return errAsked
	}
	return nil
}

func (h *hands) write(ctx context.Context, tx outbox.Tx, task *outbox.Task[work]) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect (k, kind, seq, ordering_key, fail, task_id, attempt, relay) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		task.Payload.K, task.Type, task.Payload.Seq, task.OrderingKey, task.Payload.Fail, task.ID, task.Attempt, h.Name)
	return err
}

func (h *hands) batch(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[work]) error {
	failed := handlers.BatchError{}
	for _, task := range tasks {
		if task.Attempt <= task.Payload.Fail {
			failed[task.ID] = errAsked
		} else if err := h.write(ctx, tx, task); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// keyed brings what was seen of an entity up to date: it reads the version at its start, and takes
// its time.
func (h *hands) keyed(ctx context.Context, task *outbox.Task[work]) error {
	var version int64
	if err := h.side.QueryRowContext(ctx, `SELECT version FROM entity WHERE id = $1`, task.Payload.Entity).Scan(&version); err != nil {
		return err
	}
	wait(ctx, time.Duration(rand.IntN(100))*time.Millisecond)
	return task.Complete(ctx, func(tx *sql.Tx) error {
		if err := h.write(ctx, tx, task); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE entity SET seen = greatest(seen, $2) WHERE id = $1`, task.Payload.Entity, version)
		return err
	})
}

// dawdle is what some leased tasks do in each of their runs, whatever happens to their context, and
// they go on all the same after that: a relay that is frozen past its lease finds them ready to
// end, while whoever took them over is at them still.
func (h *hands) dawdle(ctx context.Context, task *outbox.Task[work]) context.Context {
	if h.Dawdle == 0 || task.ID%h.Dawdle != 0 {
		return ctx
	}
	time.Sleep(8 * time.Second)
	return context.WithoutCancel(ctx)
}

// call leaves an idempotency key at the sink.
func (h *hands) call(ctx context.Context, key string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.Sink, bytes.NewReader(nil))
	if err != nil {
		return err
	}
	request.Header.Set("Idempotency-Key", key)
	response, err := h.client.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("chaos: the sink says %s", response.Status)
	}
	return nil
}
