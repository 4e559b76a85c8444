package run

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

var errSplit = errors.New("relay: the batch failed; its tasks run one by one")

// stepTx runs one claim of a Tx or Batch handler.
func (s *Stepper) stepTx(ctx context.Context, h *handler.Handler, c claimPlan) (runs []Run, err error) {
	var solo []int64
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		u := &unit{guardedTx: guardedTx{Store: &s.store}, h: h}
		u.within(tx)
		err := u.take(c)
		if err != nil || len(u.rows) == 0 {
			return err
		}
		solo = store.IDs(u.rows)
		switch exhausted := slices.ContainsFunc(u.rows, (*store.Row).Exhausted); {
		case !exhausted:
			runs, err = s.runUnit(ctx, u)
		case len(u.rows) == 1:
			runs, err = rejected(u, []verdict{lostVerdict(u.rows[0])})
		default:
			err = errSplit
		}
		return err
	})
	if !errors.Is(err, errSplit) {
		return runs, err
	}
	for _, id := range solo {
		more, err := s.stepTx(ctx, h, claimOne(id))
		runs = append(runs, more...)
		if err != nil {
			return runs, err
		}
	}
	return runs, nil
}

// runUnit calls the handler for what was claimed, and records the result.
func (s *Stepper) runUnit(ctx context.Context, u *unit) ([]Run, error) {
	timeout := timeoutOf(u.h, u.rows...)
	if err := u.allow(timeout); err != nil {
		return nil, err
	}
	limit, end := context.WithTimeoutCause(ctx, timeout+grace(timeout), timedOut(timeout))
	defer end()
	out := callHandler(limit, u.h, u.tx, handler.Claim{}, u.tasks())
	if out.abandoned {
		return nil, &Misuse{Type: u.h.Type, TaskID: u.rows[0].ID, Text: misuseAbandoned}
	}
	return s.settle(u, out)
}

func (s *Stepper) settle(u *unit, out callResult) ([]Run, error) {
	work, verdicts := decide(s.newEnding(u.h, out), u.rows)
	switch work {
	case keepWork:
		switch released, err := u.keep(verdicts); {
		case err == nil:
			return runsOf(u.rows, verdicts), nil
		case released:
			return nil, err
		case isBroken(err):
			return nil, misuse(u.h, u.rows[0].ID, err)
		default:
			out.err = refusedBy(err)
			return s.settle(u, out)
		}
	case undoWork:
		return rejected(u, verdicts)
	case splitWork:
		if err := u.exclusively(u.undo); err != nil {
			return nil, misuse(u.h, u.rows[0].ID, err)
		}
		return nil, errSplit
	}
	return nil, out.err // the test's context ended
}

// rejected undoes what the handler did, and records the verdicts.
func rejected(u *unit, verdicts []verdict) ([]Run, error) {
	switch undone, err := u.reject(verdicts); {
	case err == nil:
		return runsOf(u.rows, verdicts), nil
	case undone:
		return nil, err
	default:
		return nil, misuse(u.h, u.rows[0].ID, err)
	}
}

// runsOf are the runs of tasks, of which each was begun once more. Without verdicts they are done.
func runsOf(rows []*store.Row, verdicts []verdict) []Run {
	runs := make([]Run, len(rows))
	for i, r := range rows {
		v := verdict{outcome: Done}
		if verdicts != nil {
			v = verdicts[i]
		}
		runs[i] = runOf(r, min(r.Begun(), r.Max), v)
	}
	return runs
}
