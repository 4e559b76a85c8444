package txrun

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/progress"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/taskrun"
)

// Claim is a statement that takes tasks.
type Claim func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error)

// Next takes up to limit tasks from a place on.
func Next(from plan.Start, limit int) Claim {
	return func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error) {
		return s.Claim(ctx, conn, t, from, limit)
	}
}

// One takes one task by its id, if it is ready and its row is not locked.
func One(taskID int64) Claim {
	return func(ctx context.Context, s *store.Store, conn pg.Exclusive, t store.ClaimTx) (store.Claimed, error) {
		return s.ClaimOne(ctx, conn, t, taskID)
	}
}

// Found is the rows that a claim found.
func Found(rows []*store.Row) (out plan.Found) {
	for _, r := range rows {
		out.Add(plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID}, r.RunAt, len(r.Payload))
	}
	return out
}

// Unit is the claimed tasks of a Tx or Batch handler and their transaction.
type Unit struct {
	Tx    *apptx.Tx
	Rows  []*store.Row
	store *store.Store
	h     *handler.Handler
	of    store.ClaimTx
	notes progress.Notes

	runs      *store.Runs // in the journal; nil: there is none
	uncounted int         // tasks of a group that no trigger has counted as claimed
}

// Take claims tasks in the transaction, and sets the savepoint if there are some. It asks for
// PostgreSQL's clock where a decision on one of them needs it. The board may be nil.
func Take(s *store.Store, board *progress.Board, tx *apptx.Tx, h *handler.Handler, claim Claim) (*Unit, error) {
	u := &Unit{Tx: tx, store: s, h: h,
		notes: progress.Notes{Board: board, History: h.Retention > 0},
		of: store.ClaimTx{TaskType: h.Type, MaxAttempts: h.MaxAttempts,
			Group:   h.GroupSize > 1,
			Timeout: h.Timeout, Idle: idleFor(h.Timeout), Untimed: tx.Untimed(), Savepoint: apptx.Savepoint}}
	err := tx.Take(func(ctx context.Context, conn pg.Exclusive) (xid string, err error) {
		claimed, err := claim(ctx, s, conn, u.of)
		u.Rows = claimed.Rows
		if err == nil && slices.ContainsFunc(u.Rows, func(r *store.Row) bool { return decide.NeedsTime(h, r) }) {
			err = s.NoteTime(ctx, conn, u.Rows)
		}
		return claimed.XID, err
	})
	return u, err
}

// idleFor is how long the transaction of a claim may be idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + call.Grace(timeout) + call.AbandonAfter + pg.Bookkeeping
}

// Allow sets the limits of the transaction for a timeout that is not the handler's, for which the
// claim has set them. It is a query: each value would be another SET for pg_stat_statements.
func (u *Unit) Allow(timeout time.Duration) error {
	if timeout == u.h.Timeout {
		return nil
	}
	return u.Tx.Exec("/* outbox: allow a task's own timeout */ SELECT set_config('idle_in_transaction_session_timeout', '" +
		pg.Millis(idleFor(timeout)) + "', true), set_config('statement_timeout', '" + pg.Millis(timeout) + "', true)")
}

// Tasks are the tasks for the handler.
func (u *Unit) Tasks() []*store.Task {
	block := make([]store.Task, len(u.Rows))
	tasks := make([]*store.Task, len(u.Rows))
	for i, r := range u.Rows {
		tasks[i] = &block[i]
		r.Fill(tasks[i], u.store.Identity, r.Begun())
		*taskrun.Of(tasks[i]) = &u.notes
	}
	return tasks
}

// Ended ends what handlers note of their tasks: those that have not returned are refused.
func (u *Unit) Ended() { u.notes.End() }

// Keep is the plan of an end that keeps the handler's writes and writes what becomes of its tasks:
// without verdicts they are done.
func (u *Unit) Keep(verdicts []decide.Verdict) apptx.Plan {
	p := apptx.Plan{Action: apptx.Keep, History: u.h.Retention}
	var done []*store.Row
	var canceledTypes []string
	if verdicts == nil {
		done, p.Finished = u.Rows, u.Rows
		for _, r := range u.Rows {
			r.Finish = decide.FinishOf(u.h, decide.Verdict{Outcome: decide.Done}, u.notes.Result(r.ID))
		}
	}
	for i, v := range verdicts {
		switch r := u.Rows[i]; {
		case v.Outcome == decide.Canceled:
			done, canceledTypes = append(done, r), append(canceledTypes, u.h.Type)
		case v.Outcome.Finishes():
			r.Finish = decide.FinishOf(u.h, v, u.notes.Result(r.ID))
			done, p.Finished = append(done, r), append(p.Finished, r)
		}
	}
	switch {
	case u.runs == nil:
		p.Statements = "; " + u.store.ForgetTasks(done)
	case len(u.runs.IDs) > 1:
		p.Statements = "; " + u.runs.Forget(u.store, done)
	case len(done) == 1:
		p.TaskID = done[0].ID
	}
	if u.uncounted > 0 {
		p.Statements += "; " + u.store.CountClaimed(u.h.Type, u.uncounted)
	}
	p.Write = func(ctx context.Context, c pg.Exclusive) error {
		if err := apptx.WriteVerdicts(ctx, u.store, c, u.Rows, verdicts); err != nil {
			return err
		}
		return u.store.Count(ctx, c, "canceled", canceledTypes)
	}
	return p
}

// Reject is the plan of an end that undoes the handler's writes and writes what becomes of its
// tasks. A single task that was canceled or has expired is removed.
func (u *Unit) Reject(verdicts []decide.Verdict) apptx.Plan {
	return apptx.Plan{Action: apptx.Undo, Write: func(ctx context.Context, c pg.Exclusive) error {
		if u.runs != nil && len(u.runs.IDs) > 1 { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, u.runs.Forget(u.store, nil)); err != nil {
				return err
			}
		}
		if kind := verdicts[0].Outcome.Counted(); kind != "" {
			if err := u.store.EndCounted(ctx, c, u.Rows[0], kind); err != nil {
				return err
			}
		}
		if err := apptx.WriteVerdicts(ctx, u.store, c, u.Rows, verdicts); err != nil || u.runs == nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	}}
}

// Params are what a Runner needs.
type Params struct {
	Store    *store.Store
	Report   *report.Reporter
	Journal  *store.Journal
	Board    *progress.Board
	Suspects *decide.Suspects
	Claiming context.Context // ends when claiming is to stop
	Handling context.Context // ends when the drain timeout has passed
}

func (p *Params) stopping() bool { return p.Claiming.Err() != nil }

// openClaim is a claim of a Tx or Batch handler that has not ended.
type openClaim struct {
	rows   []*store.Row
	ctx    context.Context // of the handler; ends when the relay gives up waiting for handlers
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	canceled []int64 // tasks
	current  int64   // the task of a group that runs; 0: all run
}

// cancelTask ends the handler's context as one of its tasks was canceled.
func (c *openClaim) cancelTask(id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.canceled, id) {
		c.canceled = append(c.canceled, id)
	}
	if c.current == 0 || c.current == id {
		c.cancel(outbox.ErrCanceled)
	}
}

// begin is the context of the handler for one task of a group, and whether the task is canceled.
func (c *openClaim) begin(handling context.Context, id int64) (ctx context.Context, end func(), canceled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = id
	c.cancel(nil)
	c.ctx, c.cancel = context.WithCancelCause(handling)
	cancel := c.cancel
	return c.ctx, func() { cancel(nil) }, slices.Contains(c.canceled, id)
}

// end ends the handler's context as it has returned.
func (c *openClaim) end() { c.mu.Lock(); defer c.mu.Unlock(); c.cancel(nil) }

func (c *openClaim) canceledIDs() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.canceled)
}

// openClaims are the open claims of a relay.
type openClaims struct {
	mu  sync.Mutex
	all map[*openClaim]struct{}
}

func newOpenClaims() *openClaims { return &openClaims{all: map[*openClaim]struct{}{}} }

func (o *openClaims) add(handling context.Context, rows []*store.Row) *openClaim {
	c := &openClaim{rows: rows}
	c.ctx, c.cancel = context.WithCancelCause(handling)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[c] = struct{}{}
	return c
}

func (o *openClaims) remove(c *openClaim) {
	c.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *openClaims) underway() map[string][]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string][]int64{}
	for c := range o.all {
		taskType := c.rows[0].TaskType
		out[taskType] = append(out[taskType], store.IDs(c.rows)...)
	}
	return out
}

func (o *openClaims) cancel(canceled map[int64]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		for _, t := range c.rows {
			if canceled[t.ID] {
				c.cancelTask(t.ID)
			}
		}
	}
}
