package apptx

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// Action is an end of a transaction that a Plan asks for.
type Action int

const (
	Keep  Action = iota // the writes of the app's code commit, with the results of its tasks
	Undo                // these writes are rolled back, and the results commit
	Back                // all is rolled back, once the transaction is proved
	Abort               // all is rolled back
)

// Plan is how a transaction is to end.
type Plan struct {
	Action  Action
	Failure error // of the app's code; nil if it succeeded
	// Write writes the results of tasks that stay.
	Write func(context.Context, pg.Exclusive) error
	// Before is called before a planned ROLLBACK.
	Before func()

	// Of Keep.
	Finished   []*store.Row  // go to the history
	History    time.Duration // for so long; 0: they do not
	Statements string        // "; …", in the message of RELEASE
	TaskID     int64         // whose row in the journal is deleted; 0: of none
}

// How is how a transaction ended.
type How int

const (
	Committed   How = iota
	RolledBack      // as planned
	Refused         // rolled back: Failure is that of the app's code
	Failed          // rolled back: the relay's own statements or COMMIT failed
	EndedByCode     // the app's code ended it itself
	Lost            // rolled back by PostgreSQL: the connection broke
	Unknown         // COMMIT got no answer
)

// Ended is the end of a transaction.
type Ended struct {
	How       How
	Plan      Plan  // the last one
	Err       error // of the database
	Failure   error // of the app's code, or for what it did; nil without
	Committed bool  // EndedByCode: it committed; with Err that is not known
}

// Sequel is what a relay does about the tasks of an attempt once its transaction has ended.
type Sequel int

const (
	Tell           Sequel = iota // the verdicts, which are committed
	LeaveAsFound                 // no attempt: the database failed, and the row shows what happened
	GiveBack                     // as the relay stops
	RemoveCanceled               // the tasks that an operator or the app canceled
	RecordApart                  // the failure, in a transaction of its own
	SeeCommitted                 // what the app's code committed itself
	NoteLostConn                 // no attempt, but the task's SQL may have killed its backend
)

// Sequel is what follows where the transaction did not end as planned by a ROLLBACK. out is how the handler
// returned.
func (e Ended) Sequel(out call.Result) Sequel {
	switch {
	case e.How == Committed:
		return Tell
	case e.How == Unknown, e.How == Failed && e.Plan.Action == Keep:
		return LeaveAsFound
	case out.Drained && !e.Committed:
		return GiveBack
	case out.Canceled && e.How != EndedByCode:
		return RemoveCanceled
	case e.How == EndedByCode:
		return SeeCommitted
	case e.How == Lost && !out.Overran && !call.EndedContext(out.Err):
		return NoteLostConn
	}
	return RecordApart
}

// End ends the transaction. plan says how, by the failure of the app's code, nil for none. If
// PostgreSQL refuses writes that are to be kept, that is the failure, and plan is asked again.
func (t *Tx) End(failure error, plan func(failure error) Plan) Ended {
	for {
		p := plan(failure)
		e := Ended{How: RolledBack, Plan: p, Failure: p.Failure}
		if p.Action == Abort {
			p.before()
			t.Abort()
			return e
		}
		released, err := false, error(nil)
		err = t.Exclusively(func(ctx context.Context, c pg.Exclusive) (err error) {
			if p.Action == Keep {
				released, err = t.release(ctx, c, p)
			} else {
				err = t.undo(ctx, c)
				released = err == nil
			}
			if err != nil || p.Write == nil {
				return err
			}
			return p.Write(ctx, c)
		})
		switch {
		case err == nil && p.Action == Back:
			p.before()
			e.Err = t.RollBack()
			return e
		case err == nil:
			return t.commit(e)
		case released:
			t.Abort()
			e.How, e.Err = Failed, err
			return e
		case p.Action == Keep && !isBroken(err):
			failure = refusedBy(err)
		default:
			return t.broken(e, err)
		}
	}
}

func (p Plan) before() {
	if p.Before != nil {
		p.Before()
	}
}

// StepFailed ends the transaction if err, of a statement between the tasks of a group, says that it
// cannot be used. Else refused is the failure of the last task's code.
func (t *Tx) StepFailed(failure, err error) (e Ended, refused error) {
	if !isBroken(err) {
		return e, refusedBy(err)
	}
	return t.broken(Ended{Failure: failure}, err), nil
}

// commit commits. A COMMIT that surely failed is the failure of the app's code: by a trigger or
// constraint that only COMMIT checks. That of a conflict with others is not.
func (t *Tx) commit(e Ended) Ended {
	e.How = Committed
	if t.conn == nil {
		return e // the test commits
	}
	if e.Err = t.tx.Commit(); e.Err == nil {
		t.keepConn()
		return e
	}
	pg.Drop(t.conn)
	switch {
	case !pgerr.CommitFailed(e.Err):
		e.How = Unknown
	case e.Plan.Action != Keep:
		e.How = Refused
	case pgerr.Blameless(e.Err):
		e.How = Failed
	default:
		e.How, e.Failure = Refused, pgerr.Within("relay: the commit failed", e.Err)
	}
	return e
}

// broken ends a transaction that is not as it should be after the app's code: err is the error of the
// probe.
func (t *Tx) broken(e Ended, err error) Ended {
	e.How, e.Err = Refused, err
	switch {
	case isEnded(err):
		t.Abort()
		return t.endedByCode(e)
	case t.isLost(err):
		e.How = Lost
	}
	t.Abort()
	if e.Failure == nil {
		e.Failure = refusedBy(err)
	}
	return e
}

var errRolledBack = errors.New("relay: the handler rolled the transaction of its claim back")

func (t *Tx) endedByCode(e Ended) Ended {
	e.How = EndedByCode
	if t.conn == nil {
		return e
	}
	status, err := t.store.TransactionStatus(t.xid)
	e.Err, e.Committed = err, status == "committed"
	if e.Failure == nil && err == nil && !e.Committed {
		e.Failure = errRolledBack
	}
	return e
}

// WriteVerdicts writes what becomes of tasks that are not gone, unless that is written.
func WriteVerdicts(ctx context.Context, s *store.Store, tx store.Execer, rows []*store.Row, verdicts []decide.Verdict) error {
	for i, v := range verdicts {
		if v.Outcome.Gone() || v.Written {
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
		write = write || !verdicts[i].Outcome.Gone()
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
