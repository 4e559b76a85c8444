package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/progress"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/taskrun"
	"github.com/txoutbox/outbox/internal/txrun"
	"github.com/txoutbox/outbox/relay"
)

// database is where a stepper's tasks are: a pool, or an open transaction of the caller's.
type database interface {
	// InTx calls f in a transaction, or under a savepoint of the open one. It keeps what f did,
	// with the settings of the open transaction as they were before. After an error of f, which it
	// returns, a panic or a Goexit it undoes all of it.
	InTx(ctx context.Context, f func(tx *sql.Tx) error) error
}

// step is a run by a stepper.
type step struct {
	run  Run
	wait time.Duration // until the task is due again
}

// stepper runs tasks one after the other for the tests of apps, where the transaction may be the
// test's own. It has a relay's claims, calls, decisions and records, without journal, heartbeat and
// connections.
type stepper struct {
	in    database
	store store.Store
	log   *slog.Logger // gets a relay's records of an app's functions
}

// advance has decisions on claimed tasks go by the stepper's clock.
func (s *stepper) advance(rows ...*store.Row) {
	for _, r := range rows {
		r.Advance(s.store.Ahead)
	}
}

// stepOf is the step of a task in its given attempt.
func stepOf(r *store.Row, attempt int, v decide.Verdict) step {
	out := Run{ID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: relay.Outcome(v.Outcome.String())}
	if v.Outcome.Tells() {
		out.Err = call.Original(v.Change.Err)
	}
	return step{out, v.Change.Wait}
}

// misuse is a fault of a handler that a relay survives on a connection of its own, and that a test
// should hear of.
type misuse struct{ error }

const (
	misuseAbandoned = "the handler did not return after its context's end"
	misuseEnded     = "the handler ended the transaction; that is the relay's to do"
	misuseUnusable  = "the handler left its transaction unusable (rows not closed, a context of its own that ended " +
		"inside a statement?)"
)

// newMisuse is a misuse by the handler of a task.
func newMisuse(taskType string, taskID int64, text string) *misuse {
	return &misuse{fmt.Errorf("%s #%d: %s", taskType, taskID, text)}
}

// misuseBy is the misuse that the end of a transaction shows.
func misuseBy(h *handler.Handler, taskID int64, end apptx.Ended) *misuse {
	text := misuseUnusable
	if end.How == apptx.EndedByCode {
		text = misuseEnded
	}
	return newMisuse(h.Type, taskID, fmt.Sprintf("%s: %v", text, end.Err))
}

var errSplit = errors.New("relay: the batch failed; its tasks run one by one")

// stepTx runs one claim of a Tx or Batch handler.
func (s *stepper) stepTx(ctx context.Context, h *handler.Handler, c txrun.Claim) (runs []step, err error) {
	var solo []int64
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		u, err := txrun.Take(&s.store, nil, apptx.Within(&s.store, tx), h, c)
		if err != nil || len(u.Rows) == 0 {
			return err
		}
		defer u.Ended()
		s.advance(u.Rows...)
		solo = store.IDs(u.Rows)
		entries := decide.Before(h, u.Rows, nil)
		switch {
		case entries == nil:
			runs, err = s.runUnit(ctx, h, u)
		case len(entries) > 1:
			return errSplit
		default:
			verdicts := []decide.Verdict{entries[0].Verdict}
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
		work, verdicts = decide.NewRun(s.log, h, out).Tasks(u.Rows)
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

// stepLeased leases one task, runs its handler outside the stepper's own transactions, and ends the
// lease.
func (s *stepper) stepLeased(ctx context.Context, h *handler.Handler) ([]step, error) {
	token := store.NewUUID()
	t, err := s.lease(ctx, h, token)
	if err != nil || t == nil {
		return nil, err
	}
	s.advance(t)
	if v, buried := decide.Buried(h, t, store.Fresh); buried {
		return s.finish(ctx, h, t, token, v, "")
	}
	limited, release := call.ContextOf(ctx)
	defer release()
	l := &stepLease{s: s, h: h, row: t, token: token, ctx: limited,
		notes: progress.Notes{History: h.Retention > 0}}
	defer l.notes.End()
	task := &store.Task{}
	t.Fill(task, s.store.Identity, t.Begun())
	*taskrun.Of(task) = l
	if timeout := decide.Timeout(h, t); timeout > 0 {
		l.ctx.EndAt(time.Now().Add(timeout), call.TimedOut(timeout))
	}
	out := call.Run(limited, func(ctx context.Context) error { return h.Run(ctx, nil, handler.Claim{}, []*store.Task{task}) })
	l.ctx.Cancel(nil)
	if out.Abandoned {
		return nil, newMisuse(h.Type, t.ID, misuseAbandoned)
	}
	if l.misuse != nil {
		return nil, l.misuse
	}
	if v := l.completed.Load(); v != nil {
		return []step{stepOf(t, t.Begun(), *v)}, nil
	}
	_, verdicts := decide.NewRun(s.log, h, out).Tasks([]*store.Row{t})
	return s.finish(ctx, h, t, token, verdicts[0], l.notes.Result(t.ID))
}

// lease claims the next task of the type, if there is one, and counts the attempt.
func (s *stepper) lease(ctx context.Context, h *handler.Handler, token string) (t *store.Row, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		c, err := s.store.LeaseWithin(ctx, tx, leaserun.Terms(h, token), plan.Start{}, 1)
		if err != nil || len(c.Rows) == 0 {
			return err
		}
		t = c.Rows[0]
		if t.LostBy == "" {
			return nil
		}
		_, err = s.store.BeginSuspects(ctx, tx, []int64{t.ID}, token)
		return err
	})
	return t, err
}

// finish ends a lease. Nobody but the handler can have taken it away.
func (s *stepper) finish(ctx context.Context, h *handler.Handler, t *store.Row, token string,
	v decide.Verdict, result string) ([]step, error) {
	end := leaserun.EndOf(h, t, token, v, result)
	err := s.in.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.store.EndLeasesWithin(ctx, tx, []*store.LeaseEnd{&end}); err != nil {
			return err
		}
		if !end.Held {
			return newMisuse(t.TaskType, t.ID, "the handler took its lease away, or the task is gone")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []step{stepOf(t, min(t.Begun(), t.Max), v)}, nil
}

// stepLease is a stepper's hold on one task.
type stepLease struct {
	s         *stepper
	h         *handler.Handler
	row       *store.Row
	token     string
	ctx       *call.Context // of the handler
	notes     progress.Notes
	completed atomic.Pointer[decide.Verdict]
	misuse    *misuse // of a Complete
}

// Extend implements taskrun.Run. Nobody takes the task over, so the context alone matters.
func (l *stepLease) Extend(ctx context.Context, d time.Duration) error {
	for _, c := range []context.Context{l.ctx, ctx} {
		if err := context.Cause(c); err != nil {
			return pgerr.Within(fmt.Sprintf("relay: extend task %d", l.row.ID), err)
		}
	}
	l.ctx.Extend(time.Now().Add(d), call.TimedOut(d))
	return nil
}

// SetProgress implements taskrun.Run.
func (l *stepLease) SetProgress(taskID int64, fraction float64, message string) error {
	return l.notes.SetProgress(taskID, fraction, message)
}

// SetResult implements taskrun.Run.
func (l *stepLease) SetResult(taskID int64, result string) error {
	return l.notes.SetResult(taskID, result)
}

// Complete implements taskrun.Run, as a relay's does.
func (l *stepLease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fail := func(err error) error { return pgerr.Within(fmt.Sprintf("relay: complete task %d", l.row.ID), err) }
	var became decide.Verdict
	err := l.s.in.InTx(ctx, func(tx *sql.Tx) error {
		d, err := leaserun.Remove(ctx, &l.s.store, apptx.Within(&l.s.store, tx), l.h, l.row, l.token, &l.notes)
		switch {
		case errors.Is(err, outbox.ErrLeaseLost):
			return fmt.Errorf("%w: task %d", err, l.row.ID)
		case err != nil:
			return fail(err)
		}
		failure := d.Call(fn)
		end := d.End(failure)
		became = d.Verdict()
		switch {
		case end.How == apptx.Committed:
			return nil
		case failure != nil && end.How != apptx.EndedByCode:
			return failure
		case end.How == apptx.Failed:
			return fail(end.Err)
		case end.How == apptx.RolledBack:
			return fail(end.Failure)
		}
		return misuseBy(l.h, l.row.ID, end)
	})
	if err == nil {
		l.completed.Store(&became)
	} else {
		errors.As(err, &l.misuse)
	}
	return err
}

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
