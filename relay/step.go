package relay

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/drain"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

func init() {
	drain.ErrGoexit = errGoexit
	drain.NewStepper = func(in drain.Database, registered []*handler.Handler, schema string, log *slog.Logger) drain.Stepper {
		s := &stepper{in: in, id: store.NewUUID(), handlers: map[string]*handler.Handler{},
			r: &runner{Store: store.Store{Schema: pg.Schema(schema)}, log: log}}
		s.leases = &leases{r: s.r}
		for _, h := range registered {
			s.handlers[h.Type] = h
			s.types = append(s.types, h.Type)
			s.bases = append(s.bases, int64(h.Priority))
		}
		return s
	}
}

// stepper runs tasks one after the other for the tests of apps, where the transaction may be the
// test's own: with a relay's claims, calls and transitions, without its journal, heartbeat and
// connections.
type stepper struct {
	in       drain.Database
	r        *runner // for its rules and its schema's name; it never runs
	leases   *leases
	id       string // as a relay
	handlers map[string]*handler.Handler
	types    []string
	bases    []int64
}

const nextTypeSQL = `/* outbox: the type of the next task to step */
SELECT t.task_type FROM outbox.task t JOIN unnest($1::text[], $2::bigint[]) AS h (task_type, base) ON h.task_type = t.task_type
 WHERE t.state = 'ready' ORDER BY t.priority + h.base, t.attempt, t.task_id LIMIT 1 FOR UPDATE OF t SKIP LOCKED`

// Step implements drain.Stepper.
func (s *stepper) Step(ctx context.Context) ([]drain.Run, error) {
	for {
		var next string
		err := s.in.InTx(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, s.r.SQL(store.PromoteHeadsSQL), math.MaxInt32); err != nil { // of all keys
				return err
			}
			err := tx.QueryRowContext(ctx, s.r.SQL(nextTypeSQL), pq.Array(s.types), pq.Array(s.bases)).Scan(&next)
			if errors.Is(err, sql.ErrNoRows) {
				return nil
			}
			return err
		})
		if err != nil || next == "" {
			return nil, err
		}
		h, step := s.handlers[next], s.stepTx
		if h.Kind == handler.KindLeased {
			step = s.stepLeased
		}
		if runs, err := step(ctx, h, claimNext{limit: h.BatchSize}); err != nil || len(runs) > 0 {
			return runs, err
		}
		// Somebody else took it between the two.
	}
}

var errSplit = errors.New("relay: the batch failed; its tasks run one by one")

// stepTx is what an attempt is in a relay.
func (s *stepper) stepTx(ctx context.Context, h *handler.Handler, c claimPlan) (runs []drain.Run, err error) {
	var solo []int64
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		rows, xid, err := s.take(ctx, h, c, tx)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Exhausted() {
				solo = append(solo, r.ID)
			}
		}
		if len(solo) > 0 && len(rows) > 1 {
			return errSplit // the others are claimed again
		}
		t := &stepTx{stepper: s, h: h, tx: tx, rows: rows, xid: xid}
		switch {
		case len(rows) == 0:
			return nil
		case len(solo) > 0:
			r := rows[0]
			return t.put(ctx, r, store.Change{Attempt: r.Max, Reason: store.ReasonAttempts, Err: r.LostText(store.DeadAttempts)}, nil, &runs)
		}
		err = t.run(ctx, &runs)
		if errors.Is(err, errSplit) {
			solo = store.IDs(rows)
		}
		return err
	})
	var lost *lostClaim
	if errors.As(err, &lost) {
		if awaitErr := s.await(ctx, store.IDs(lost.rows)); awaitErr != nil {
			return nil, err
		}
		if solo = store.IDs(lost.rows); len(solo) == 1 {
			return s.record(ctx, h, lost)
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

// take claims as attempt.take does.
func (s *stepper) take(ctx context.Context, h *handler.Handler, c claimPlan, tx *sql.Tx) (rows []*store.Row, xid string, err error) {
	if _, err := tx.ExecContext(ctx, claimSettings(h)); err != nil {
		return nil, "", err
	}
	for i, more := 0, true; more; i++ {
		var p claimPart
		if p, more = c.part(h, i, len(rows)); p.limit == 0 {
			break
		}
		found, err := tx.QueryContext(ctx, s.r.SQL(p.query), p.args...)
		if err != nil {
			return nil, "", err
		}
		var got []*store.Row
		said := xid
		if p.text {
			got, said, err = store.ScanTexts(found, h.Type, h.MaxAttempts, p.limit)
		} else {
			got, said, err = store.ScanRows(found, h.Type, h.MaxAttempts, p.limit)
		}
		if err != nil {
			return nil, "", err
		}
		if len(got) > 0 {
			xid = said
		}
		rows = append(rows, got...)
	}
	return rows, xid, nil
}

// lostClaim is a claim whose connection broke while its handler failed, mostly as a context of the
// handler's ended inside a statement.
type lostClaim struct {
	*drain.Misuse
	rows   []*store.Row
	result *handler.Result
}

func (l *lostClaim) Unwrap() error { return l.Misuse }

const awaitSQL = `/* outbox: wait for a claim that is gone */
SELECT set_config('lock_timeout', '10s', true), (SELECT count(*) FROM (SELECT 1 FROM outbox.task WHERE task_id = ANY ($1::bigint[]) FOR UPDATE) AS t)`

// await waits for the backend of a lost connection to let its tasks go.
func (s *stepper) await(ctx context.Context, taskIDs []int64) error {
	return s.in.InTx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.r.SQL(awaitSQL), pq.Array(taskIDs))
		return err
	})
}

// record records a failure in another transaction. Where there is no other one, the test has lost
// its own.
func (s *stepper) record(ctx context.Context, h *handler.Handler, l *lostClaim) (runs []drain.Run, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		rows, xid, err := s.take(ctx, h, claimOne{l.rows[0].ID}, tx)
		if err != nil || len(rows) == 0 {
			return errors.Join(err, l.Misuse)
		}
		t := &stepTx{stepper: s, h: h, tx: tx, rows: rows, xid: xid}
		return t.write(ctx, rows[0], l.result, &runs)
	})
	if err != nil {
		return nil, l.Misuse
	}
	return runs, nil
}

// ended is the run of a task that is done; err is what it was discarded for.
func ended(r *store.Row, attempt int, err error) drain.Run {
	run := drain.Run{TaskID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: drain.Done}
	if err != nil {
		run.Outcome, run.Err = drain.Discarded, original(err)
	}
	return run
}

// changed is the run of a task that is not done. result is nil if its handler was not called.
func changed(r *store.Row, attempt int, c store.Change, result *handler.Result) drain.Run {
	run := drain.Run{TaskID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: drain.Failed, Err: original(c.Err), Wait: c.Wait}
	switch {
	case c.Reason != "":
		run.Outcome, run.Wait = drain.Dead, 0
		if result == nil {
			run.Attempt = c.Attempt
		}
	case result.Action == handler.ActionSnooze:
		run.Outcome, run.Err = drain.Snoozed, nil
	case result.Action == handler.ActionRunAgain:
		run.Outcome, run.Err = drain.Again, nil
	}
	return run
}
