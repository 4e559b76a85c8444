package run

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// buryCommitted writes tasks to the dead letters whose handler committed their removal itself and
// then failed.
func (r *Runner) buryCommitted(ctx context.Context, rows []*store.Row, handlerErr error) ([]verdict, error) {
	verdicts := make([]verdict, len(rows))
	err := r.Conns.InTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		for i, t := range rows {
			c := store.Change{Attempt: min(t.Begun(), t.Max), Reason: store.ReasonCommitted, Err: handlerErr, Failed: true}
			verdicts[i] = verdict{outcome: Dead, change: c}
			if err := r.WriteDead(ctx, tx, t, c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Log.Error("outbox: dead letters could not be written; the tasks are only in this record", "task_type", rows[0].TaskType, "tasks", store.IDs(rows), "error", pgerr.LogText(err))
		return nil, err
	}
	return verdicts, nil
}

// insertAgain begins the next iteration of tasks whose handler committed their removal itself,
// against the rules, and then asked for it.
func (r *Runner) insertAgain(ctx context.Context, h *handler.Handler, rows []*store.Row, again *handler.Result) error {
	err := r.Conns.InTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		for _, t := range rows {
			next := nextIteration(*again)
			next.ClaimCommitted = true
			if err := r.WriteBack(ctx, tx, t, next); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Log.Error("outbox: the next iterations could not be written; the tasks are only in this record", "task_type", h.Type, "tasks", store.IDs(rows), "error", pgerr.LogText(err))
		return err
	}
	r.due(again.Wait)
	return nil
}
