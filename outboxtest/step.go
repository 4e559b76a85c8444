package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
)

// database is where a stepper's tasks are: a pool, or an open transaction of the caller's.
type database interface {
	// InTx calls f in a transaction, or under a savepoint of the open one. It keeps what f did,
	// with the settings of the open transaction as they were before. After an error of f, which it
	// returns, a panic or a Goexit it undoes all of it.
	InTx(ctx context.Context, f func(tx *sql.Tx) error) error
}

// step is one run of one task by a stepper.
type step struct {
	TaskID  int64
	Type    string
	Attempt int // 1 in the first run
	Outcome decide.Outcome
	Err     error         // of Discarded, Retry, Throttled and Dead
	Wait    time.Duration // until it is due again
}

// stepper runs tasks one after the other for the tests of apps, where the transaction may be the
// test's own. It has a relay's claims, calls, decisions and records, without journal, heartbeat and
// connections.
type stepper struct {
	in       database
	store    store.Store
	log      *slog.Logger
	handlers map[string]*handler.Handler
	types    []string
	bases    []int64
}

// newStepper returns a stepper that logs to log what a relay logs of an app's functions.
func newStepper(in database, registered []*handler.Handler, schema string, log *slog.Logger) *stepper {
	s := &stepper{in: in, log: log, handlers: map[string]*handler.Handler{}}
	s.store = store.Store{Schema: pg.Schema(schema), RelayID: store.NewUUID(), Identity: &store.Identity{}}
	for _, h := range registered {
		s.handlers[h.Type] = h
		s.types = append(s.types, h.Type)
		s.bases = append(s.bases, int64(h.Priority))
	}
	return s
}

// identify says which database the tasks are of.
func (s *stepper) identify(databaseID string) { s.store.Identity.Set(databaseID) }

const nextTypeSQL = `/* outbox: the type of the next task to step */
SELECT t.task_type FROM outbox.task t JOIN unnest($1::text[], $2::bigint[]) AS h (task_type, base) ON h.task_type = t.task_type
 WHERE t.state = 'ready' AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = t.task_type AND p.paused)
 ORDER BY t.priority + h.base, t.attempt, t.task_id LIMIT 1 FOR UPDATE OF t SKIP LOCKED`

// setAhead makes runs end at a time that is ahead of the real one by so much.
func (s *stepper) setAhead(ahead time.Duration) { s.store.Ahead = max(0, ahead) }

// newRun is how a run of the handler ended, by the stepper's clock.
func (s *stepper) newRun(h *handler.Handler, out call.Result) decide.Run {
	e := decide.NewRun(s.log, h, out)
	e.Ended = e.Ended.Add(s.store.Ahead)
	return e
}

// step runs the next ready task, by priority, attempt and id, or the batch that it heads. Without
// runs none is ready. An error is the database's, or a [misuse].
func (s *stepper) step(ctx context.Context) ([]step, error) {
	for {
		var next string
		err := s.in.InTx(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, s.store.SQL(store.PromoteHeadsSQL), math.MaxInt32); err != nil { // of all keys
				return err
			}
			err := tx.QueryRowContext(ctx, s.store.SQL(nextTypeSQL), pq.Array(s.types), pq.Array(s.bases)).Scan(&next)
			if errors.Is(err, sql.ErrNoRows) {
				return nil
			}
			return err
		})
		if err != nil || next == "" {
			return nil, err
		}
		var runs []step
		if h := s.handlers[next]; h.Kind == handler.KindLeased {
			runs, err = s.stepLeased(ctx, h)
		} else {
			runs, err = s.stepTx(ctx, h, txrun.Next(plan.Start{}, h.BatchSize))
		}
		if err != nil || len(runs) > 0 {
			return runs, err
		}
		// Somebody else took it between the two.
	}
}

// stepOf is the step of a task in its given attempt.
func stepOf(r *store.Row, attempt int, v decide.Verdict) step {
	out := step{TaskID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: v.Outcome, Wait: v.Change.Wait}
	switch v.Outcome {
	case decide.Discarded, decide.Retry, decide.Throttled, decide.Dead:
		out.Err = call.Original(v.Change.Err)
	}
	return out
}

// misuse is a fault of a handler that a relay survives on a connection of its own, and that a test
// should hear of.
type misuse struct {
	Type   string
	TaskID int64
	Text   string
	Err    error // of the handler or the database; may be nil
}

func (m *misuse) Error() string {
	if m.Err == nil {
		return m.Text
	}
	return m.Text + ": " + m.Err.Error()
}

func (m *misuse) Unwrap() error { return m.Err }

const (
	misuseAbandoned = "the handler did not return after its context's end"
	misuseEnded     = "the handler ended the transaction; that is the relay's to do"
	misuseUnusable  = "the handler left its transaction unusable (rows not closed, a context of its own that ended inside a statement?)"
)

// misuseBy is the misuse that the end of a transaction shows.
func misuseBy(h *handler.Handler, taskID int64, end apptx.Ended) *misuse {
	m := &misuse{Type: h.Type, TaskID: taskID, Text: misuseUnusable, Err: end.Err}
	if end.How == apptx.EndedByCode {
		m.Text = misuseEnded
	}
	return m
}
