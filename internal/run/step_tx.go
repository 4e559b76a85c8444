package run

import (
	"context"
	"database/sql"
	"errors"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

var errSplit = errors.New("relay: the batch failed; its tasks run one by one")

// lostClaim is a claim whose connection broke while its handler failed, mostly as a context of the
// handler's ended inside a statement.
type lostClaim struct {
	*Misuse
	rows     []*store.Row
	verdicts []verdict
}

func (l *lostClaim) Unwrap() error { return l.Misuse }

// stepTx runs one claim of a Tx or Batch handler.
func (s *Stepper) stepTx(ctx context.Context, h *handler.Handler, c claimPlan) (runs []Run, err error) {
	var solo []int64
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		u := s.unit(h, tx)
		defer u.done()
		if err := u.take(c); err != nil {
			return err
		}
		exhausted := false
		for _, r := range u.rows {
			exhausted = exhausted || r.Exhausted()
		}
		switch {
		case len(u.rows) == 0:
			return nil
		case exhausted && len(u.rows) == 1:
			return s.rejected(u, []verdict{lostVerdict(u.rows[0])}, &runs)
		case exhausted:
			solo = store.IDs(u.rows)
			return errSplit
		}
		err := s.runUnit(ctx, u, &runs)
		if errors.Is(err, errSplit) {
			solo = store.IDs(u.rows)
		}
		return err
	})
	var lost *lostClaim
	if errors.As(err, &lost) {
		if s.await(ctx, lost.rows) != nil {
			return nil, err
		}
		if solo = store.IDs(lost.rows); len(solo) == 1 {
			return s.recordLost(ctx, h, lost)
		}
		err = errSplit // the failure may be any member's
	}
	if !errors.Is(err, errSplit) {
		return runs, err
	}
	runs = nil
	for _, id := range solo {
		more, err := s.stepTx(ctx, h, claimOne{id})
		runs = append(runs, more...)
		if err != nil {
			return runs, err
		}
	}
	return runs, nil
}

func (s *Stepper) unit(h *handler.Handler, tx *sql.Tx) *unit {
	u := &unit{guardedTx: newGuardedTx(&s.store), h: h}
	u.within(tx)
	return u
}

// runUnit calls the handler for what was claimed, and records the result.
func (s *Stepper) runUnit(ctx context.Context, u *unit, runs *[]Run) error {
	timeout := timeoutOf(u.h, u.rows...)
	if err := u.allow(timeout); err != nil {
		return err
	}
	limit, end := context.WithTimeoutCause(ctx, timeout+grace(timeout), timeoutError(timeout))
	defer end()
	out := callHandler(limit, u.h, u.tx, handler.Claim{}, u.tasks())
	if out.abandoned {
		return &Misuse{Type: u.h.Type, TaskID: u.rows[0].ID, Text: misuseAbandoned}
	}
	return s.settle(u, out, runs)
}

func (s *Stepper) settle(u *unit, out callResult, runs *[]Run) error {
	work, verdicts := decide(ending{kind: u.h.Kind, out: out, backoff: backoffOf(s.log, u.h)}, u.rows)
	switch work {
	case keepWork:
		released, err := u.keep(verdicts)
		switch {
		case err == nil:
			record(runs, u.rows, verdicts)
			return nil
		case released:
			return err
		case !isBroken(err):
			out.err = refusedBy(err)
			return s.settle(u, out, runs)
		}
		return misuse(u.h, u.rows[0].ID, err)
	case undoWork:
		return s.rejected(u, verdicts, runs)
	case splitWork:
		if err := u.exclusively(u.undo); err != nil {
			return s.lost(u, nil, err)
		}
		return errSplit
	}
	return out.err // the test's context ended
}

// rejected undoes what the handler did, and records the verdicts.
func (s *Stepper) rejected(u *unit, verdicts []verdict, runs *[]Run) error {
	switch undone, err := u.reject(verdicts); {
	case err == nil:
		record(runs, u.rows, verdicts)
		return nil
	case undone:
		return err
	default:
		return s.lost(u, verdicts, err)
	}
}

// lost is the error of a claim whose transaction cannot be used after its handler failed.
func (s *Stepper) lost(u *unit, verdicts []verdict, err error) error {
	m := misuse(u.h, u.rows[0].ID, err)
	if pgerr.Lost(err) {
		return &lostClaim{m, u.rows, verdicts}
	}
	return m
}

// record notes the runs of tasks, of which each was begun once more.
func record(runs *[]Run, rows []*store.Row, verdicts []verdict) {
	for i, r := range rows {
		v := verdict{outcome: Done}
		if verdicts != nil {
			v = verdicts[i]
		}
		*runs = append(*runs, runOf(r, min(r.Begun(), r.Max), v))
	}
}

const awaitSQL = `/* outbox: wait for a claim that is gone */
SELECT set_config('lock_timeout', '10s', true), (SELECT count(*) FROM (SELECT 1 FROM outbox.task WHERE task_id = ANY ($1::bigint[]) FOR UPDATE) AS t)`

// await waits for the backend of a lost connection to let its tasks go.
func (s *Stepper) await(ctx context.Context, rows []*store.Row) error {
	return s.in.InTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.store.SQL(awaitSQL), pq.Array(store.IDs(rows)))
		return err
	})
}

// recordLost records a failure in another transaction. Where there is no other one, the test has
// lost its own.
func (s *Stepper) recordLost(ctx context.Context, h *handler.Handler, l *lostClaim) (runs []Run, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		u := s.unit(h, tx)
		defer u.done()
		if err := u.take(claimOne{l.rows[0].ID}); err != nil || len(u.rows) == 0 {
			return errors.Join(err, l.Misuse)
		}
		return s.rejected(u, l.verdicts, &runs)
	})
	if err != nil {
		return nil, l.Misuse
	}
	return runs, nil
}
