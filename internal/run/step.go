package run

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// Database is where a Stepper's tasks are: a pool, or an open transaction of the caller's.
type Database interface {
	// InTx calls f in a transaction, or under a savepoint of the open one. It keeps what f did,
	// with the settings of the open transaction as they were before. After an error of f, which it
	// returns, a panic or a Goexit it undoes all of it.
	InTx(ctx context.Context, f func(tx *sql.Tx) error) error
}

// Run is one run of one task by a Stepper.
type Run struct {
	TaskID  int64
	Type    string
	Attempt int // 1 in the first run
	Outcome Outcome
	Err     error         // of Discarded, Retry, Throttled and Dead
	Wait    time.Duration // until it is due again
}

// Stepper runs tasks one after the other for the tests of apps, where the transaction may be the
// test's own. It has a relay's claims, calls, decisions and records, without journal, heartbeat and
// connections.
type Stepper struct {
	in       Database
	store    store.Store
	log      *slog.Logger
	handlers map[string]*handler.Handler
	types    []string
	bases    []int64
}

// NewStepper returns a Stepper that logs to log what a relay logs of an app's functions.
func NewStepper(in Database, registered []*handler.Handler, schema string, log *slog.Logger) *Stepper {
	s := &Stepper{in: in, log: log, handlers: map[string]*handler.Handler{}}
	s.store = store.Store{Schema: pg.Schema(schema), RelayID: store.NewUUID(), Identity: &store.Identity{}}
	for _, h := range registered {
		s.handlers[h.Type] = h
		s.types = append(s.types, h.Type)
		s.bases = append(s.bases, int64(h.Priority))
	}
	return s
}

// Identify says which database the tasks are of.
func (s *Stepper) Identify(databaseID string) { s.store.Identity.Set(databaseID) }

const nextTypeSQL = `/* outbox: the type of the next task to step */
SELECT t.task_type FROM outbox.task t JOIN unnest($1::text[], $2::bigint[]) AS h (task_type, base) ON h.task_type = t.task_type
 WHERE t.state = 'ready' AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = t.task_type AND p.paused)
 ORDER BY t.priority + h.base, t.attempt, t.task_id LIMIT 1 FOR UPDATE OF t SKIP LOCKED`

// SetAhead makes runs end at a time that is ahead of the real one by so much.
func (s *Stepper) SetAhead(ahead time.Duration) { s.store.Ahead = max(0, ahead) }

// newEnding is how a run of the handler ended, by the Stepper's clock.
func (s *Stepper) newEnding(h *handler.Handler, out callResult) ending {
	e := newEnding(s.log, h, out)
	e.ended = e.ended.Add(s.store.Ahead)
	return e
}

// Step runs the next ready task, by priority, attempt and id, or the batch that it heads. Without
// runs none is ready. An error is the database's, or a [Misuse].
func (s *Stepper) Step(ctx context.Context) ([]Run, error) {
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
		var runs []Run
		if h := s.handlers[next]; h.Kind == handler.KindLeased {
			runs, err = s.stepLeased(ctx, h)
		} else {
			runs, err = s.stepTx(ctx, h, claimNext(plan.Start{}, h.BatchSize))
		}
		if err != nil || len(runs) > 0 {
			return runs, err
		}
		// Somebody else took it between the two.
	}
}

// runOf is what the verdict says of a task in its given attempt.
func runOf(r *store.Row, attempt int, v verdict) Run {
	run := Run{TaskID: r.ID, Type: r.TaskType, Attempt: attempt, Outcome: v.outcome, Wait: v.change.Wait}
	if v.outcome == Discarded || v.outcome == Retry || v.outcome == Throttled || v.outcome == Dead {
		run.Err = original(v.change.Err)
	}
	return run
}

// lostVerdict is that on a task whose attempts were all begun before.
func lostVerdict(r *store.Row) verdict {
	return verdict{outcome: Dead, change: store.Change{Attempt: r.Max, Reason: store.ReasonAttempts, Err: r.LostText(store.DeadAttempts)}}
}

// Misuse is a fault of a handler that a relay survives on a connection of its own, and that a test
// should hear of.
type Misuse struct {
	Type   string
	TaskID int64
	Text   string
	Err    error // of the handler or the database; may be nil
}

func (m *Misuse) Error() string {
	if m.Err == nil {
		return m.Text
	}
	return m.Text + ": " + m.Err.Error()
}

func (m *Misuse) Unwrap() error { return m.Err }

const (
	misuseAbandoned = "the handler did not return after its context's end"
	misuseEnded     = "the handler ended the transaction; that is the relay's to do"
	misuseUnusable  = "the handler left its transaction unusable (rows not closed, a context of its own that ended inside a statement?)"
)

// misuse is the Misuse that an error of a guarded transaction is.
func misuse(h *handler.Handler, taskID int64, err error) *Misuse {
	m := &Misuse{Type: h.Type, TaskID: taskID, Text: misuseUnusable, Err: err}
	if endedTransaction(pgerr.Code(err), err) {
		m.Text = misuseEnded
	}
	return m
}
