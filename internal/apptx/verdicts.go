package apptx

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// WriteVerdicts writes what becomes of tasks that are not done, unless that is written.
func WriteVerdicts(ctx context.Context, s *store.Store, tx store.Execer, rows []*store.Row, verdicts []decide.Verdict) error {
	for i, v := range verdicts {
		if v.Done || v.Written {
			continue
		}
		write := s.WriteBack
		if v.Change.Reason != "" {
			write = s.WriteDead
		}
		if err := write(ctx, tx, rows[i], v.Change); err != nil {
			return err
		}
	}
	return nil
}

// RecordCommitted writes verdicts on tasks whose removal the app's code committed itself, against
// the rules. Of a group some are not counted as claimed yet.
func RecordCommitted(ctx context.Context, s *store.Store, to *report.Reporter, rows []*store.Row, verdicts []decide.Verdict, uncounted int) error {
	write := uncounted > 0
	for i := range verdicts {
		verdicts[i].Change.ClaimCommitted = true
		write = write || !verdicts[i].Done
	}
	if !write {
		return nil
	}
	err := s.Conns.InTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		if uncounted > 0 {
			if _, err := tx.ExecContext(ctx, s.CountClaimed(rows[0].TaskType, uncounted)); err != nil {
				return err
			}
		}
		return WriteVerdicts(ctx, s, tx, rows, verdicts)
	})
	if err != nil {
		to.Log.Error("outbox: dead letters or next iterations could not be written; the tasks are only in this record",
			"task_type", rows[0].TaskType, "tasks", store.IDs(rows), "error", pgerr.LogText(err))
	}
	return err
}
