// Package decide says what becomes of tasks and of the writes of their handler, for all kinds of
// handlers, relays and outboxtest. It does no I/O: of internal/store it uses the row and the change.
package decide

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Work is what becomes of the writes of a Tx or Batch handler.
type Work int

const (
	Keep     Work = iota // it commits, with the results of its tasks
	Undo                 // it is rolled back, and the failures are recorded
	Split                // it is rolled back, and the tasks run one by one
	Cancel               // it is rolled back, and the canceled tasks are removed
	GiveBack             // it is rolled back, and the tasks are as before their claim
)

// Verdict is what becomes of one task. If it is not gone, change is written.
type Verdict struct {
	Outcome Outcome
	Back    bool         // it is ready, as if it had not been claimed
	Written bool         // Change is, in the claim's transaction
	Change  store.Change // of a task that is not gone; of a discarded one: its error
}

// FinishOf is how a task ended whose outcome finishes it, for the history; nil: its type has none.
func FinishOf(h *handler.Handler, v Verdict, result string) *store.Finish {
	if h.Retention <= 0 {
		return nil
	}
	return &store.Finish{Outcome: v.Outcome.String(), Err: v.Change.Err, Result: result}
}

// Run is how the run of a handler ended.
type Run struct {
	Kind      outbox.Kind
	Result    call.Result
	Ended     time.Time // by the process's clock
	Canceled  []int64   // tasks that an operator or the app canceled
	Prevented bool      // a Leased handler's Complete or Extend failed by the database
	Backoff   handler.Schedule

	MaxElapsed time.Duration // from the first failure to the last attempt's time; 0: any time
	NoJitter   bool          // waits that a handler asks for are not spread
}

// retrySpan is the time from the first failure within which a wait that the other side asks for
// counts no attempt. The default backoff takes as long. A handler's MaxElapsed replaces it.
const retrySpan = 72 * time.Hour

// NewRun is how a run of the handler ended. A Backoff that panics is logged.
func NewRun(log *slog.Logger, h *handler.Handler, result call.Result) Run {
	return Run{Kind: h.Kind, Result: result, Ended: time.Now(), Backoff: backoffOf(log, h), MaxElapsed: h.MaxElapsed, NoJitter: h.NoJitter}
}

// backoffOf is the handler's backoff, which gets the handler's own error.
func backoffOf(log *slog.Logger, h *handler.Handler) handler.Schedule {
	return func(attempt int, err error) (wait time.Duration, again bool) {
		wait, again, broken := h.Backoff(attempt, call.Original(err))
		if broken != nil {
			log.Error("outbox: Backoff panicked; the task waits by the default backoff",
				"task_type", h.Type, "attempt", attempt, "wait", wait, pgerr.LogAttr(broken))
		}
		return wait, again
	}
}

// LostWait is how long a task waits whose run was lost with its connection, by that err.
func LostWait(log *slog.Logger, h *handler.Handler, err error) time.Duration {
	return uncounted(backoffOf(log, h), err)
}

// uncounted is the wait after a run that is no attempt: that after the first one. A backoff that
// would stop there, as it does for this err, cannot: the task waits as by default.
func uncounted(backoff handler.Schedule, err error) time.Duration {
	wait, again := backoff(1, err)
	if !again {
		wait, _ = handler.DefaultSchedule(1, err)
	}
	return wait
}

// Tasks says what becomes of the tasks of a run, and of the writes of its handler. There are
// verdicts only where they differ: where a Tx or Batch handler returned nil, all tasks are done; and
// there are none where the tasks are split, canceled or given back.
func (e Run) Tasks(rows []*store.Row) (Work, []Verdict) {
	if e.Result.Err == nil && e.Kind != outbox.KindLeased {
		return Keep, nil
	}
	decided, some := Keep, e.failures()
	result := handler.ResultOf(e.Result.Err)
	switch _, keeps := kept(result.Action); {
	case e.Kind == outbox.KindLeased, keeps:
		some = nil // one result for all tasks
	case some != nil:
	case e.Result.Drained:
		return GiveBack, nil
	case e.Result.Canceled:
		return Cancel, nil
	case len(rows) > 1 && result.Action == handler.ActionRetry:
		return Split, nil
	default:
		decided = Undo
	}
	verdicts := make([]Verdict, len(rows))
	for i, r := range rows {
		err := e.Result.Err
		if some != nil {
			err = some[r.ID]
		}
		verdicts[i] = e.Verdict(r, err)
	}
	return decided, verdicts
}

// failures are those of some of a batch's tasks, or nil.
func (e Run) failures() (some handlers.BatchResult) {
	if e.Kind == outbox.KindBatch {
		errors.As(e.Result.Err, &some)
	}
	return some
}

// kept is the outcome of a result that keeps what the handler wrote, and whether it is one.
func kept(a handler.Action) (o Outcome, is bool) {
	i := slices.Index(Outcomes(), a.Outcome())
	if i < 0 || !Outcome(i).Succeeds() {
		return 0, false
	}
	return Outcome(i), true
}

// Verdict says what becomes of one task, of which err is the result.
func (e Run) Verdict(r *store.Row, err error) Verdict {
	if err == nil {
		return Verdict{Outcome: Done}
	}
	begun := r.Begun()
	result := handler.ResultOf(err)
	switch o, keeps := kept(result.Action); {
	case keeps && o.Finishes():
		return Verdict{Outcome: o, Change: store.Change{Err: err}}
	case slices.Contains(e.Canceled, r.ID):
		return Verdict{Outcome: Canceled}
	case keeps:
		return Verdict{Outcome: RunAgain, Change: NextIteration(result)}
	case e.Result.Drained:
		return Verdict{Outcome: Drained, Back: true, Change: store.Change{Attempt: begun - 1, Keep: r.Undecided}}
	case e.Result.LeaseLost:
		return Verdict{Outcome: LeaseLost, Back: true, Change: store.Change{Attempt: begun - 1}}
	case e.Prevented && !e.Result.Overran && (result.Action == handler.ActionRetry || result.Action == handler.ActionRetryAfter):
		return Verdict{Outcome: Infrastructure, Change: store.Change{Attempt: begun - 1, Wait: uncounted(e.Backoff, err), Err: err}}
	}
	return e.Failed(r, result, begun)
}

// Failed is the verdict on a task whose handler failed, snoozed it or was throttled.
func (e Run) Failed(r *store.Row, result handler.Result, begun int) Verdict {
	c := store.Change{Attempt: min(begun, math.MaxInt16), Err: result.Err, Keep: r.Undecided, Failed: true, Took: e.Result.Took}
	again, left := true, cmp.Or(e.MaxElapsed, retrySpan)-max(e.elapsed(r, 0), 0)
	switch {
	case result.Action == handler.ActionSnooze:
		snooze := store.Change{Attempt: begun - 1, Wait: result.Wait, Keep: r.Undecided}
		if result.Reason {
			snooze.Err, snooze.Unlisted = result.Err, true
		}
		return Verdict{Outcome: Snoozed, Change: snooze}
	case result.Action == handler.ActionRetryAfter && left >= handler.LeastWait:
		c.Attempt, c.Failed, c.Throttled = begun-1, false, true
		e.waitAsAsked(&c, result, left)
		return Verdict{Outcome: Throttled, Change: c}
	case result.Action == handler.ActionDead:
		again = false
	case begun >= r.Max:
		c.Reason, c.Attempt = outbox.ReasonAttempts, min(begun, r.Max)
	case result.Action == handler.ActionRetryAfter:
		e.waitAsAsked(&c, result, handler.MaxBackoff)
	default:
		c.Wait, again = e.Backoff(begun, result.Err)
	}
	if e.MaxElapsed > 0 && c.Reason == "" {
		again = again && e.elapsed(r, c.Wait) <= e.MaxElapsed
	}
	if !again {
		c.Reason = outbox.ReasonHandler
	}
	if c.Reason != "" {
		c.Err = result.Err // there is no wait
		return Verdict{Outcome: Dead, Change: c}
	}
	return Verdict{Outcome: Failed, Change: c}
}

// NeedsTime reports whether a decision on a claimed task goes by PostgreSQL's clock: where MaxElapsed, or
// the span of a throttled task, counts from an earlier failure.
func NeedsTime(h *handler.Handler, r *store.Row) bool {
	_, failed := r.FirstFailure()
	return failed && (h.MaxElapsed > 0 || r.Throttled())
}

// elapsed is the time from the first failure, this one included, until the task has waited.
func (e Run) elapsed(r *store.Row, wait time.Duration) time.Duration {
	now := r.At(e.Ended)
	first, failed := r.FirstFailure()
	if !failed {
		first = now
	}
	return now.Add(wait).Sub(first)
}

// waitAsAsked sets the wait that the other side asks for, at most the given one. Up to a tenth more
// spreads the tasks; the wait is shorter only where it is cut, which the error says.
func (e Run) waitAsAsked(c *store.Change, result handler.Result, most time.Duration) {
	if c.Wait = result.Wait; !e.NoJitter {
		c.Wait += rand.N(c.Wait/10 + 1)
	}
	if c.Wait = min(c.Wait, most); c.Wait < result.Wait {
		c.Err = call.Noted(c.Err, fmt.Sprintf("the wait is cut to %v", most.Round(time.Second)))
	}
}

// Succeed reports whether all verdicts are successes: the error that they were made of is no failure.
func Succeed(verdicts []Verdict) bool {
	return !slices.ContainsFunc(verdicts, func(v Verdict) bool { return !v.Outcome.Succeeds() })
}

// NextIteration is the change of a task that is to run again.
func NextIteration(again handler.Result) store.Change {
	return store.Change{Wait: again.Wait, Again: true, Payload: string(again.Stored)}
}

// Entry is what is known of a claimed task before its handler is called.
type Entry struct {
	Earlier store.Judgement // Fresh and Suspect: it runs, unless it is buried
	Wait    time.Duration   // Postponed
	Buried  bool
	Verdict Verdict // of one that is buried
}

// Before says what becomes of claimed tasks of which earlier runs left these rows in the journal. Without
// entries all of them run.
func Before(h *handler.Handler, rows []*store.Row, found map[int64][]store.Earlier) []Entry {
	alone := func(r *store.Row) bool { _, buried := Buried(h, r, store.Fresh); return buried }
	if len(found) == 0 && !slices.ContainsFunc(rows, alone) {
		return nil
	}
	entries := make([]Entry, len(rows))
	for i, r := range rows {
		e := &entries[i]
		if e.Earlier, e.Wait = r.Judge(found[r.ID]); e.Earlier != store.Postponed {
			e.Verdict, e.Buried = Buried(h, r, e.Earlier)
		}
	}
	return entries
}

// Buried is the verdict on a claimed task that may not run, and whether it is one: by itself, or by what
// the journal says. All kinds of handlers and outboxtest ask it at the claim; a group asks for all its tasks.
func Buried(h *handler.Handler, r *store.Row, earlier store.Judgement) (v Verdict, buried bool) {
	c := store.Change{Attempt: r.Max, Reason: outbox.ReasonAttempts}
	switch {
	case r.Expired() && earlier == store.Fresh:
		return OfExpired(h), true
	case earlier == store.DeadLostConns:
		c.Attempt, c.Reason = min(r.Attempt+r.Lost, r.Max), outbox.ReasonLostConnections
	case earlier != store.DeadAttempts && !r.Exhausted():
		return Verdict{}, false
	}
	c.Err = r.LostText(earlier)
	return Verdict{Outcome: Dead, Change: c}, true
}

var errExpired = errors.New("relay: the task expired before it had begun")

// OfExpired is the verdict on a task that has expired; h is nil where no relay has its handler.
func OfExpired(h *handler.Handler) Verdict {
	if h != nil && h.DiscardExpired {
		return Verdict{Outcome: Expired}
	}
	return Verdict{Outcome: Dead, Change: store.Change{Reason: outbox.ReasonExpired, Err: errExpired}}
}

// Committed is the verdict on a task whose handler committed its removal itself, against the rules:
// the task is a dead letter if the handler failed then, begins its next iteration if that was asked
// for, or is done.
func Committed(r *store.Row, failure error, again *handler.Result) Verdict {
	switch {
	case failure != nil:
		return Verdict{Outcome: Dead, Change: store.Change{Attempt: min(r.Begun(), r.Max), Reason: outbox.ReasonCommitted, Err: failure, Failed: true}}
	case again != nil:
		return Verdict{Outcome: RunAgain, Change: NextIteration(*again)}
	}
	return Verdict{Outcome: Done}
}

// Committed are the verdicts on tasks whose handler committed their removal itself; their verdicts
// until then are given. A batch's result of each says which of them failed.
func (e Run) Committed(rows []*store.Row, verdicts []Verdict) []Verdict {
	if e.Result.Err == nil {
		return verdicts
	}
	some, out := e.failures(), make([]Verdict, len(rows))
	for i, r := range rows {
		switch {
		case some == nil:
			out[i] = Committed(r, e.Result.Err, nil)
		case verdicts[i].Outcome.Succeeds(), verdicts[i].Outcome.Gone():
			out[i] = verdicts[i]
		default:
			out[i] = Committed(r, some[r.ID], nil)
		}
	}
	return out
}
