package run

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// work is what becomes of what a Tx or Batch handler wrote.
type work int

const (
	keepWork     work = iota // it commits, with the results of its tasks
	undoWork                 // it is rolled back, and the failures are recorded
	splitWork                // it is rolled back, and the tasks run one by one
	cancelWork               // it is rolled back, and the canceled tasks are removed
	giveBackWork             // it is rolled back, and the tasks are as before their claim
)

// verdict is what becomes of one task. If it is not done, change is written.
type verdict struct {
	outcome Outcome
	done    bool         // it is deleted
	back    bool         // it is ready, as if it had not been claimed
	written bool         // change is, in the claim's transaction
	change  store.Change // of a discarded task: its error
}

// ending is how the run of a handler ended.
type ending struct {
	kind      handler.Kind
	out       callResult
	ended     time.Time                                          // by the process's clock
	canceled  []int64                                            // tasks that an operator or the app canceled
	prevented bool                                               // a Leased handler's Complete or Extend failed by the database
	backoff   func(attempts int) (wait time.Duration, stop bool) // after so many failed attempts

	maxElapsed time.Duration // from the first failure to the last attempt's time; 0: any time
	noJitter   bool          // what the handler waits for is not spread
}

// throttleSpan is the time from the first failure within which a wait that the other side asks for
// counts no attempt. The default backoff takes as long. A handler's MaxElapsed replaces it.
const throttleSpan = 72 * time.Hour

// newEnding is how a run of the handler ended. log hears of a Backoff that panics.
func newEnding(log *slog.Logger, h *handler.Handler, out callResult) ending {
	return ending{kind: h.Kind, out: out, ended: time.Now(), backoff: backoffOf(log, h), maxElapsed: h.MaxElapsed, noJitter: h.NoJitter}
}

// decide says what becomes of the tasks of a run, and of what its handler wrote. It has verdicts
// only where they differ: where a Tx or Batch handler returned nil, all tasks are done; and there
// are none where they are split, canceled or given back.
func decide(e ending, rows []*store.Row) (work, []verdict) {
	if e.out.err == nil && e.kind != handler.KindLeased {
		return keepWork, nil
	}
	decided, some := keepWork, e.failures()
	switch result := handler.ResultOf(e.out.err); {
	case e.kind == handler.KindLeased, result.Action == handler.ActionDiscard, result.Action == handler.ActionRunAgain:
		some = nil // one result for all tasks
	case some != nil:
	case e.out.drained:
		return giveBackWork, nil
	case e.out.canceled:
		return cancelWork, nil
	case len(rows) > 1 && result.Action == handler.ActionRetry:
		return splitWork, nil
	default:
		decided = undoWork
	}
	verdicts := make([]verdict, len(rows))
	for i, r := range rows {
		err := e.out.err
		if some != nil {
			err = some[r.ID]
		}
		verdicts[i] = e.verdict(r, err)
	}
	return decided, verdicts
}

// failures are those of some of a batch's tasks, or nil.
func (e *ending) failures() (some handlers.BatchError) {
	if e.kind == handler.KindBatch {
		errors.As(e.out.err, &some)
	}
	return some
}

// verdict says what becomes of one task, of which err is the result.
func (e *ending) verdict(r *store.Row, err error) verdict {
	if err == nil {
		return verdict{outcome: Done, done: true}
	}
	begun := r.Begun()
	if e.kind == handler.KindLeased {
		begun = r.Attempt // the claim has counted this run
	}
	result := handler.ResultOf(err)
	switch {
	case result.Action == handler.ActionDiscard:
		return verdict{outcome: Discarded, done: true, change: store.Change{Err: err}}
	case slices.Contains(e.canceled, r.ID):
		return verdict{outcome: Canceled, done: true}
	case result.Action == handler.ActionRunAgain:
		return verdict{outcome: RunAgain, change: nextIteration(result)}
	case e.out.drained:
		return verdict{outcome: Drained, back: true, change: store.Change{Attempt: begun - 1, Keep: r.Undecided}}
	case e.out.leaseLost:
		return verdict{outcome: LeaseLost, back: true, change: store.Change{Attempt: begun - 1}}
	case e.prevented && !e.out.overran && (result.Action == handler.ActionRetry || result.Action == handler.ActionRetryAfter):
		wait, _ := e.backoff(1)
		return verdict{outcome: Infrastructure, change: store.Change{Attempt: begun - 1, Wait: wait, Err: err}}
	}
	return e.failed(r, result, begun)
}

// failed is the verdict on a task whose handler failed, snoozed it or was throttled.
func (e *ending) failed(r *store.Row, result handler.Result, begun int) verdict {
	c := store.Change{Attempt: min(begun, math.MaxInt16), Err: result.Err, Keep: r.Undecided, Failed: true, Took: e.out.took}
	stop := false
	switch {
	case result.Action == handler.ActionSnooze:
		snooze := store.Change{Attempt: begun - 1, Wait: result.Wait, Keep: r.Undecided}
		if result.Reason {
			snooze.Err, snooze.Unlisted = result.Err, true
		}
		return verdict{outcome: Snoozed, change: snooze}
	case result.Action == handler.ActionRetryAfter && e.elapsed(r, result.Wait) <= cmp.Or(e.maxElapsed, throttleSpan):
		return verdict{outcome: Throttled, change: store.Change{Attempt: begun - 1, Wait: e.spread(result.Wait), Err: result.Err,
			Throttled: true, Keep: r.Undecided, Took: e.out.took}}
	case result.Action == handler.ActionDead:
		stop = true
	case begun >= r.Max:
		c.Reason, c.Attempt = store.ReasonAttempts, min(begun, r.Max)
	case result.Action == handler.ActionRetryAfter:
		c.Wait = e.spread(result.Wait)
	default:
		c.Wait, stop = e.backoff(begun)
	}
	if e.maxElapsed > 0 && c.Reason == "" {
		stop = stop || e.elapsed(r, c.Wait) > e.maxElapsed
	}
	if stop {
		c.Reason = store.ReasonHandler
	}
	if c.Reason != "" {
		return verdict{outcome: Dead, change: c}
	}
	return verdict{outcome: Retry, change: c}
}

// elapsed is the time from the first failure, this one included, until the task has waited.
func (e *ending) elapsed(r *store.Row, wait time.Duration) time.Duration {
	now := r.At(e.ended)
	first, failed := r.FirstFailure()
	if !failed {
		first = now
	}
	return now.Add(wait).Sub(first)
}

// spread adds up to a tenth to a wait that the other side asks for: it is never shorter.
func (e *ending) spread(wait time.Duration) time.Duration {
	if e.noJitter {
		return wait
	}
	return wait + rand.N(wait/10+1)
}

// nextIteration is the change of a task that is to run again.
func nextIteration(again handler.Result) store.Change {
	return store.Change{Wait: again.Wait, Again: true, Payload: string(again.Payload)}
}
