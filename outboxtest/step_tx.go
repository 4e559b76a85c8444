package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
)

var errSplit = errors.New("relay: the batch failed; its tasks run one by one")

// stepTx runs one claim of a Tx or Batch handler.
func (s *stepper) stepTx(ctx context.Context, h *handler.Handler, c txrun.Claim) (runs []step, err error) {
	var solo []int64
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		u, err := txrun.Take(&s.store, apptx.Within(&s.store, tx), h, c)
		if err != nil || len(u.Rows) == 0 {
			return err
		}
		solo = store.IDs(u.Rows)
		v, buried := decide.Buried(u.Rows[0], store.Fresh)
		switch {
		case len(u.Rows) > 1 && slices.ContainsFunc(u.Rows, (*store.Row).Exhausted):
			return errSplit
		case !buried:
			runs, err = s.runUnit(ctx, h, u)
		default:
			verdicts := []decide.Verdict{v}
			end := u.Tx.End(nil, func(error) apptx.Plan { return u.Reject(verdicts) })
			runs, err = stepsOf(h, u, verdicts, end)
		}
		return err
	})
	if !errors.Is(err, errSplit) {
		return runs, err
	}
	for _, id := range solo {
		more, err := s.stepTx(ctx, h, txrun.One(id))
		runs = append(runs, more...)
		if err != nil {
			return runs, err
		}
	}
	return runs, nil
}

// runUnit calls the handler for the claimed tasks, and records the result.
func (s *stepper) runUnit(ctx context.Context, h *handler.Handler, u *txrun.Unit) ([]step, error) {
	timeout := decide.Timeout(h, u.Rows...)
	if err := u.Allow(timeout); err != nil {
		return nil, err
	}
	limit, release := context.WithTimeoutCause(ctx, timeout+call.Grace(timeout), call.TimedOut(timeout))
	defer release()
	tasks := u.Tasks()
	out := call.Run(limit, func(ctx context.Context) error { return h.Run(ctx, u.Tx.SQL(), handler.Claim{}, tasks) })
	if out.Abandoned {
		return nil, newMisuse(h.Type, u.Rows[0].ID, misuseAbandoned)
	}
	var work decide.Work
	var verdicts []decide.Verdict
	end := u.Tx.End(out.Err, func(failure error) apptx.Plan {
		out.Err = failure
		work, verdicts = s.newRun(h, out).Tasks(u.Rows)
		switch work {
		case decide.Keep:
			return u.Keep(verdicts)
		case decide.Undo:
			return u.Reject(verdicts)
		case decide.Split:
			return apptx.Plan{Action: apptx.Back}
		}
		return apptx.Plan{Action: apptx.Abort} // the test's context ended
	})
	switch {
	case end.How != apptx.RolledBack:
		return stepsOf(h, u, verdicts, end)
	case work == decide.Split:
		return nil, errSplit
	}
	return nil, out.Err
}

// stepsOf are the steps of a claim's tasks, each of which was begun once more, after the end of their
// transaction. Without verdicts they are done.
func stepsOf(h *handler.Handler, u *txrun.Unit, verdicts []decide.Verdict, end apptx.Ended) ([]step, error) {
	switch end.How {
	case apptx.Committed:
	case apptx.Failed:
		return nil, end.Err
	default:
		return nil, misuseBy(h, u.Rows[0].ID, end)
	}
	runs := make([]step, len(u.Rows))
	for i, r := range u.Rows {
		v := decide.Verdict{Outcome: decide.Done}
		if verdicts != nil {
			v = verdicts[i]
		}
		runs[i] = stepOf(r, min(r.Begun(), r.Max), v)
	}
	return runs, nil
}
