package run

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// writeVerdicts writes what becomes of tasks that are not done, unless that is written.
func writeVerdicts(ctx context.Context, s *store.Store, tx store.Execer, rows []*store.Row, verdicts []verdict) error {
	for i, v := range verdicts {
		if v.done || v.written {
			continue
		}
		write := s.WriteBack
		if v.change.Reason != "" {
			write = s.WriteDead
		}
		if err := write(ctx, tx, rows[i], v.change); err != nil {
			return err
		}
	}
	return nil
}

// recordCommitted writes what becomes of tasks whose handler committed their removal itself,
// against the rules: they are dead letters if it failed then, begin their next iteration if it
// asked for that, or are done.
func (r *Runner) recordCommitted(ctx context.Context, rows []*store.Row, failure error, again *handler.Result) ([]verdict, error) {
	verdicts := make([]verdict, len(rows))
	for i, t := range rows {
		v := verdict{outcome: Done, done: true}
		switch {
		case failure != nil:
			v = committedDead(t, failure)
		case again != nil:
			v = verdict{outcome: RunAgain, change: nextIteration(*again)}
		}
		verdicts[i] = v
	}
	if failure == nil && again == nil {
		return verdicts, nil
	}
	return verdicts, r.writeCommitted(ctx, rows, verdicts, 0)
}

// committedDead is the verdict on a task whose handler failed after it had committed.
func committedDead(t *store.Row, failure error) verdict {
	return verdict{outcome: Dead, change: store.Change{Attempt: min(t.Begun(), t.Max), Reason: store.ReasonCommitted, Err: failure, Failed: true}}
}

// writeCommitted writes verdicts on tasks whose removal is committed, of which some are not counted.
func (r *Runner) writeCommitted(ctx context.Context, rows []*store.Row, verdicts []verdict, uncounted int) error {
	for i := range verdicts {
		verdicts[i].change.ClaimCommitted = true
	}
	err := r.Conns.InTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		if uncounted > 0 {
			if _, err := tx.ExecContext(ctx, r.CountClaimed(rows[0].TaskType, uncounted)); err != nil {
				return err
			}
		}
		return writeVerdicts(ctx, &r.Store, tx, rows, verdicts)
	})
	if err != nil {
		r.Log.Error("outbox: dead letters or next iterations could not be written; the tasks are only in this record", "task_type", rows[0].TaskType, "tasks", store.IDs(rows), "error", pgerr.LogText(err))
	}
	return err
}
