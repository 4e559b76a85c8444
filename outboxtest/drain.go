// Package outboxtest helps an app to test what it enqueues and what its handlers do, inside a
// transaction of the test's own that is rolled back at the end, or on a database of the test's own.
//
//	tx, err := db.BeginTx(t.Context(), nil)
//	defer tx.Rollback()
//
//	err = signUp(t.Context(), tx, "ada@example.com")            // what is tested
//	outboxtest.RequireEnqueued(t, tx, SendWelcome, nil)         // it enqueued a mail
//	got := outboxtest.Drain(t, tx, registry)                    // the app's handlers run, in tx
//	if err := got.Err(); err != nil { … }
//
// [RequireEnqueued], [RequireEnqueuedN], [RequireNotEnqueued] and [Enqueued] look at the tasks.
// [Drain] runs those that are due as a relay would, one after the other, with the same transitions.
// Nothing is waited for: no relay runs, and delays pass by [Advance] and [RetryNow].
//
// The functions fail the test by t.Fatalf, at the caller's line, so they are to be called in the
// test's own goroutine. They work with lib/pq and pgx, with database/sql and sqlx.
package outboxtest

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
	"github.com/txoutbox/outbox/relay"
)

// Drain runs the tasks that are due, one after the other, with the registry's handlers, their
// middleware and timeouts, until none is due; those that handlers enqueue as well. in is a *sql.Tx
// or *sqlx.Tx, which stays open, so that a rollback ends it all; or a *sql.DB or *sqlx.DB, with no
// relay beside. The order is that of priority (with the handler's), attempt and id, whatever the
// type, and within an ordering key that of a relay.
//
// The tables change as by a relay: a task that is done is gone; one that failed is scheduled again
// by its backoff with attempt and last_error, or a dead letter. Tasks of types that the registry
// does not know are left alone and counted in the result. A handler's failure does not fail the
// test: see [Result]. Each run with an Err is in the test's log, and so is a Backoff that panics.
//
// A task that failed or was throttled does not run again in the same Drain, however soon it is due,
// unless [RetryNow] or [Advance] say so. A task that snoozed or runs again does not
// either, but for RunAgain(0), which runs again at once.
//
// In a transaction each Tx or Batch handler gets that transaction, under a savepoint to which its
// failure, also one of an SQL statement, is rolled back. Deferred constraints are checked after
// each handler, and deferred triggers without keeping what they write. What a handler sets by SET
// LOCAL stays, but for role, search_path and the timeouts. A Leased handler runs with its task
// leased, and Complete works in the same transaction; through a pool of its own it does not see the
// test's rows. On a database all of them have transactions of their own.
//
// Drain fails the test, by t.Fatalf, after an error of the database; in a copy of another database,
// such as a restored dump (relay.ErrCopy), but not of an empty template; when a handler ends its
// transaction, leaves it unusable or does not return in time; after [MaxRuns] runs; and for bad
// arguments. It stops after a handler that called FailNow on t. Tasks of a paused type are left
// alone. There is no heartbeat; limits, rates and WorkersByType are not in force.
func Drain(t testing.TB, in outbox.Querier, registry *handlers.Registry, opts ...DrainOption) *Result {
	t.Helper()
	d, err := newDrainer(t, in, registry, opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := d.run(t); err != nil {
		t.Fatalf("outboxtest: Drain: %v", err)
	}
	return d.result
}

// drainer is one Drain.
type drainer struct {
	drainSettings
	in       outbox.Querier // for statements that need no transaction of their own
	stepper  *stepper
	handlers map[string]*handler.Handler
	types    []string
	bases    []int64 // the priorities of the types
	result   *Result
	waiting  []int64 // tasks that failed, snoozed or run again, until the drain's clock says otherwise
	clock    int64   // the drain's, in µs since 1970, if it is ahead of PostgreSQL's; else 0
	horizon  int64   // how far the clock may go; 0 if it may not
}

func newDrainer(t testing.TB, in outbox.Querier, registry *handlers.Registry, opts []DrainOption) (*drainer, error) {
	d := &drainer{in: in, handlers: map[string]*handler.Handler{}, result: &Result{}}
	d.drainSettings = drainSettings{ctx: t.Context(), schema: schemaname.Default, maxRuns: 1_000}
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("outboxtest: a DrainOption is nil")
		}
		if err := o.drain(&d.drainSettings); err != nil {
			return nil, err
		}
	}
	if registry == nil {
		return nil, errors.New("outboxtest: Drain needs a *handlers.Registry, not nil")
	}
	database, err := newDatabase(d.ctx, in)
	if err != nil {
		return nil, err
	}
	for _, h := range handler.Registered(registry) {
		d.handlers[h.Type] = h
		d.types, d.bases = append(d.types, h.Type), append(d.bases, int64(h.Priority))
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	d.stepper = &stepper{in: database, log: log,
		store: store.Store{Schema: d.schema, RelayID: store.NewUUID(), Identity: &store.Identity{}}}
	return d, nil
}

func (d *drainer) run(t testing.TB) (err error) {
	t.Helper()
	if err := d.start(); err != nil {
		return err
	}
	for more := true; more; {
		before, failed := len(d.result.Runs), t.Failed()
		more, err = d.next()
		for _, one := range d.result.Runs[before:] {
			if one.Err != nil {
				t.Logf("outboxtest: %v", one)
			}
			if !failed && t.Failed() && call.IsGoexit(one.Err) {
				t.FailNow()
			}
		}
		if err != nil {
			return err
		}
	}
	d.result.Unhandled, err = otherTypes(d.ctx, d.in, d.schema, d.types...)
	return err
}

const clockSQL = `/* outboxtest: PostgreSQL's clock */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

func (d *drainer) start() error {
	err := d.stepper.in.InTx(d.ctx, func(tx *sql.Tx) error {
		noted, err := origin.Check(d.ctx, tx, d.schema, "")
		d.stepper.store.Identity.Set(noted.DatabaseID)
		return err
	})
	if err != nil {
		return err
	}
	if d.within > 0 {
		if err := d.in.QueryRowContext(d.ctx, clockSQL).Scan(&d.horizon); err != nil {
			return err
		}
		d.horizon += d.within.Microseconds()
	}
	_, err = d.promote()
	return err
}

// next makes the next runs. Without more it is done. An error is the database's, or a [misuse].
func (d *drainer) next() (more bool, err error) {
	runs, err := d.step()
	if err != nil {
		return false, err
	}
	if len(runs) == 0 {
		return d.advance()
	}
	for _, one := range runs {
		d.result.Runs = append(d.result.Runs, one.run)
		switch one.run.Outcome {
		case relay.OutcomeFailed, relay.OutcomeThrottled, relay.OutcomeSnoozed, relay.OutcomeRunAgain:
			if err := d.later(one.run, one.wait); err != nil {
				return false, err
			}
		}
	}
	if n := len(d.result.Runs); n >= d.maxRuns {
		last := &Result{Runs: d.result.Runs[max(0, n-5):]}
		return false, fmt.Errorf("stopped after %d runs: do tasks enqueue each other, snooze, wait or "+
			"run again without end? MaxRuns allows more. The last ones:\n%v", n, last)
	}
	return true, nil
}

const nextTypeSQL = `/* outboxtest: the type of the next task to run */
SELECT t.task_type FROM outbox.task t
  JOIN unnest($1::text[], $2::bigint[]) AS h (task_type, base) ON h.task_type = t.task_type
 WHERE t.state = 'ready'
   AND NOT EXISTS (SELECT FROM outbox.task_type p WHERE p.task_type = t.task_type AND p.paused)
 ORDER BY t.priority + h.base, t.attempt, t.task_id LIMIT 1 FOR UPDATE OF t SKIP LOCKED`

// step runs the next ready task, by priority, attempt and id, or the batch that it heads. Without
// runs none is ready.
func (d *drainer) step() ([]step, error) {
	for {
		if _, err := d.exec(store.PromoteHeadsSQL, math.MaxInt32, 0); err != nil { // of all keys
			return nil, err
		}
		if _, err := d.exec(store.PromotePlacesSQL, 0, math.MaxInt32); err != nil {
			return nil, err
		}
		var next string
		err := d.in.QueryRowContext(d.ctx, d.schema.SQL(nextTypeSQL), pq.Array(d.types), pq.Array(d.bases)).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		var runs []step
		if h := d.handlers[next]; h.Kind == outbox.KindLeased {
			runs, err = d.stepper.stepLeased(d.ctx, h)
		} else {
			runs, err = d.stepper.stepTx(d.ctx, h, txrun.Next(plan.Start{}, h.BatchSize))
		}
		if err != nil || len(runs) > 0 {
			return runs, err
		}
		// Somebody else took it between the two.
	}
}

const retrySQL = `/* outboxtest: retry at once */
UPDATE outbox.task SET state = 'ready',
       run_at = LEAST(run_at, GREATEST(clock_timestamp(), timestamptz 'epoch' + $2::bigint * interval '1 microsecond'))
 WHERE task_id = $1 AND state = 'scheduled'`

const delaySQL = `/* outboxtest: due by the drain's clock */
UPDATE outbox.task SET run_at = GREATEST(run_at, timestamptz 'epoch' + $2::bigint * interval '1 microsecond')
 WHERE task_id = $1 AND state = 'scheduled'`

// later decides when a task that is scheduled again is due for this drain.
func (d *drainer) later(last Run, wait time.Duration) error {
	if last.Outcome == relay.OutcomeFailed || last.Outcome == relay.OutcomeThrottled {
		if d.retry {
			_, err := d.exec(retrySQL, last.ID, d.clock)
			return err
		}
	} else if wait <= 0 {
		return nil // an iteration that is due at once
	}
	if !slices.Contains(d.waiting, last.ID) {
		d.waiting = append(d.waiting, last.ID)
	}
	if d.clock == 0 {
		return nil
	}
	_, err := d.exec(delaySQL, last.ID, d.clock+wait.Microseconds())
	return err
}

const promoteScheduledSQL = `/* outboxtest: promote scheduled tasks */
UPDATE outbox.task SET state = 'ready'
 WHERE state = 'scheduled' AND task_type = ANY ($1::text[])
   AND (run_at <= timestamptz 'epoch' + $2::bigint * interval '1 microsecond'
        OR run_at <= clock_timestamp() AND task_id <> ALL ($3::bigint[]))`

// promote makes ready what is due, but for what this drain has put off itself: that depends on how
// fast the test is.
func (d *drainer) promote() (more bool, err error) {
	n, err := d.exec(promoteScheduledSQL, pq.Array(d.types), d.clock,
		pq.Array(append([]int64{}, d.waiting...)))
	return n > 0, err
}

const dueSQL = `/* outboxtest: the next due time */
SELECT (extract(epoch FROM min(run_at)) * 1000000)::bigint FROM outbox.task
 WHERE state = 'scheduled' AND task_type = ANY ($1::text[])
   AND run_at <= timestamptz 'epoch' + $2::bigint * interval '1 microsecond'`

// advance looks for tasks that have become due, by PostgreSQL's clock and then by that of the
// drain.
func (d *drainer) advance() (more bool, err error) {
	if more, err := d.promote(); more || err != nil || d.horizon == 0 {
		return more, err
	}
	var due sql.NullInt64
	err = d.in.QueryRowContext(d.ctx, d.schema.SQL(dueSQL), pq.Array(d.types), d.horizon).Scan(&due)
	if err != nil || !due.Valid {
		return false, err
	}
	d.clock = max(d.clock, due.Int64)
	d.stepper.store.Ahead = max(0, time.Until(time.UnixMicro(d.clock)))
	return d.promote()
}

func (d *drainer) exec(query string, args ...any) (n int64, err error) {
	result, err := d.in.ExecContext(d.ctx, d.schema.SQL(query), args...)
	if err == nil {
		n, err = result.RowsAffected()
	}
	return n, err
}

// Run is one run of one task in a Drain.
type Run struct {
	ID      int64 // of the task
	Type    string
	Attempt int // 1 in a task's first run
	Outcome relay.Outcome
	// Err is the handler's error, for errors.Is and errors.As; nil of the outcomes done, snoozed and
	// run_again.
	Err error
}

// String is the run on one line: type, ID, attempt, outcome and error.
func (r Run) String() string {
	s := fmt.Sprintf("%s #%d, attempt %d: %s", r.Type, r.ID, r.Attempt, r.Outcome)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Result has the runs of a Drain.
type Result struct {
	// Runs are in the order in which they were made. The members of a Batch handler's call are a
	// run each. A call that failed for all of a batch is none: its members run one by one then, as
	// in production.
	Runs []Run
	// Unhandled counts the tasks of types that the registry has no handler for. They were left
	// alone.
	Unhandled map[string]int
}

// Count is the number of runs with the outcome.
func (r *Result) Count(o relay.Outcome) (n int) {
	for _, run := range r.Runs {
		if run.Outcome == o {
			n++
		}
	}
	return n
}

// Err joins the errors of all runs that failed or made a task a dead letter, each with its task;
// nil if there are none. For other outcomes see Count.
func (r *Result) Err() error {
	var errs []error
	for _, run := range r.Runs {
		if run.Outcome == relay.OutcomeFailed || run.Outcome == relay.OutcomeDead {
			errs = append(errs, fmt.Errorf("%s #%d, attempt %d: %s: %w", run.Type, run.ID, run.Attempt, run.Outcome, run.Err))
		}
	}
	return errors.Join(errs...)
}

// String has a line for each run, and one for unhandled types.
func (r *Result) String() string {
	lines := make([]string, 0, len(r.Runs)+1)
	for _, run := range r.Runs {
		lines = append(lines, run.String())
	}
	if len(r.Unhandled) > 0 {
		lines = append(lines, "no handler: "+countsText(r.Unhandled))
	}
	return strings.Join(lines, "\n")
}
