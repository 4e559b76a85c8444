package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/drain"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// stepTx is one claim for a Tx or Batch handler, inside a transaction that others end.
type stepTx struct {
	*stepper
	h    *handler.Handler
	tx   *sql.Tx
	rows []*store.Row
	xid  string
}

const stepSavepoint = "outbox_step_handler"

func (t *stepTx) run(ctx context.Context, runs *[]drain.Run) error {
	timeout := timeoutOf(t.h, t.rows...)
	if err := t.exec(ctx, "SAVEPOINT "+stepSavepoint+"; SET LOCAL statement_timeout = "+pg.Millis(timeout)); err != nil {
		return err
	}
	tasks := make([]*store.Task, len(t.rows))
	for i, r := range t.rows {
		tasks[i] = r.Task(r.Begun())
	}
	limit, end := context.WithTimeoutCause(ctx, timeout+grace(timeout), timeoutError(timeout))
	defer end()
	out := callHandler(limit, t.h, t.tx, handler.Claim{}, tasks)
	if out.abandoned {
		return t.misuse("the handler did not return after its context's end", nil)
	}
	var some handlers.BatchError
	result := handler.ResultOf(out.err)
	again := runsAgain(out.err)
	if again { // as if each task had said so
		some, out.err = allAgain(t.rows, result), nil
	}
	switch {
	case again, t.h.Kind == handler.KindBatch && errors.As(out.err, &some), out.err == nil, result.Action == handler.ActionDiscard:
		failure, err := t.keep(ctx)
		if err != nil {
			return err
		}
		if failure == nil {
			return t.succeed(ctx, out.err, some, runs)
		}
		result = handler.ResultOf(failure)
	}
	if err := t.undo(ctx); err != nil {
		var m *drain.Misuse
		if out.err != nil && errors.As(err, &m) && pgerr.Lost(m.Err) {
			return &lostClaim{m, t.rows, result}
		}
		return err
	}
	if len(t.rows) > 1 && result.Action == handler.ActionRetry && result.Wait == 0 {
		return errSplit
	}
	for _, r := range t.rows {
		if err := t.write(ctx, r, result, runs); err != nil {
			return err
		}
	}
	return nil
}

// keep ends the handler's savepoint if all is well with what the handler did; failure is why it is
// not.
func (t *stepTx) keep(ctx context.Context) (failure, err error) {
	err = t.probe(ctx)
	if pgerr.Code(err) == "25P02" {
		return errHidden, nil
	}
	if err != nil {
		return nil, err
	}
	if err := t.in.Constraints(ctx, t.tx); err != nil {
		if pgerr.Code(err) == "" || pgerr.Lost(err) {
			return nil, err
		}
		return fmt.Errorf("relay: deferred until the commit: %w", err), nil
	}
	return nil, t.exec(ctx, "RELEASE SAVEPOINT "+stepSavepoint+"; SET LOCAL role TO DEFAULT; SET LOCAL statement_timeout = "+pg.Millis(pg.Bookkeeping))
}

func (t *stepTx) succeed(ctx context.Context, err error, failed handlers.BatchError, runs *[]drain.Run) error {
	if failed != nil {
		err = nil
	}
	var done []*store.Row
	for _, r := range t.rows {
		one := failed[r.ID]
		if one == nil {
			one = err
		}
		if one != nil && handler.ResultOf(one).Action != handler.ActionDiscard {
			if err := t.write(ctx, r, handler.ResultOf(one), runs); err != nil {
				return err
			}
			continue
		}
		r.Discarded = one
		done = append(done, r)
		*runs = append(*runs, ended(r, r.Begun(), one))
	}
	for _, keep := range t.r.KeepTasks(t.h.Keep, done) {
		if err := t.exec(ctx, keep); err != nil {
			return err
		}
	}
	return t.exec(ctx, t.r.ForgetTasks(done))
}

// undo rolls the handler's work back and proves that the claim still stands.
func (t *stepTx) undo(ctx context.Context) error {
	err := t.exec(ctx, "ROLLBACK TO SAVEPOINT "+stepSavepoint+"; RELEASE SAVEPOINT "+stepSavepoint+"; SET LOCAL statement_timeout = "+pg.Millis(pg.Bookkeeping))
	switch {
	case err == nil:
		return t.probe(ctx)
	case errors.Is(err, errTxDone), pgerr.Code(err) == "25P01", pgerr.Code(err) == "3B001":
		return t.misuse("the handler ended the transaction; that is the relay's to do", err)
	}
	return t.misuse("the handler left its transaction unusable (rows not closed, a context of its own that ended inside a statement?)", err)
}

// probe asks for what only the right transaction can answer. Its error is PostgreSQL's or a Misuse.
func (t *stepTx) probe(ctx context.Context) error {
	want := strconv.Itoa(rand.IntN(64))
	var got string
	var xid sql.NullString
	err := t.tx.QueryRowContext(ctx, "SELECT "+want+"::text, pg_current_xact_id_if_assigned()::text").Scan(&got, &xid)
	switch {
	case errors.Is(err, errTxDone):
		return t.misuse("the handler ended the transaction; that is the relay's to do", nil)
	case err != nil && pgerr.Code(err) == "25P02":
		return err
	case err != nil, got != want:
		return t.misuse("the handler left its transaction unusable (rows not closed?)", err)
	case xid.String != t.xid:
		return t.misuse("the handler ended the transaction by a statement; that is the relay's to do", nil)
	}
	return nil
}

// write records a result other than done.
func (t *stepTx) write(ctx context.Context, r *store.Row, result *handler.Result, runs *[]drain.Run) error {
	return t.put(ctx, r, after(t.r.log, t.h, r, result, r.Begun()), result, runs)
}

func (t *stepTx) put(ctx context.Context, r *store.Row, c store.Change, result *handler.Result, runs *[]drain.Run) error {
	write := t.r.WriteBack
	if c.Reason != "" {
		write = t.r.WriteDead
	}
	if err := write(ctx, t.tx, r, c); err != nil {
		return err
	}
	*runs = append(*runs, changed(r, r.Begun(), c, result))
	return nil
}

// exec runs statements without parameters, which travel together.
func (t *stepTx) exec(ctx context.Context, statements string) error {
	_, err := t.tx.ExecContext(ctx, statements)
	return err
}

func (t *stepTx) misuse(text string, err error) error {
	return &drain.Misuse{Type: t.h.Type, TaskID: t.rows[0].ID, Text: text, Err: err}
}
