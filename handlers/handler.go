package handlers

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// Kind is how the tasks of a type are claimed and run.
type Kind int

// The kinds of handler.
const (
	KindTx Kind = iota
	KindBatch
	KindLeased
)

func (k Kind) String() string { return [...]string{"tx", "batch", "leased"}[k] }

// Limits and defaults of handlers.
const (
	// MaxTxTimeout is the longest, and the default, timeout of Tx and Batch handlers. An open transaction
	// keeps VACUUM from its work in the whole database.
	MaxTxTimeout = 30 * time.Second
	// DefaultLeasedTimeout is the timeout of Leased handlers.
	DefaultLeasedTimeout = 5 * time.Minute
	// DefaultMaxAttempts bounds the attempts of a task where neither it nor its handler says otherwise.
	DefaultMaxAttempts = 10

	maxBackoff   = 24 * time.Hour
	maxBatchSize = 10_000
	minLease     = 100 * time.Millisecond

	maxRunningTotal = 1000
	maxRate         = 1_000_000
	maxRatePer      = 31 * 24 * time.Hour
	leastRateStep   = 10 * time.Microsecond
	maxKeep         = 100 * 365 * 24 * time.Hour
)

// Handler is one registered handler, as a relay sees it.
type Handler struct {
	Type        string
	Kind        Kind
	BatchSize   int           // tasks of one claim; 1 unless the kind is KindBatch
	Timeout     time.Duration // of one run; 0 is none, for KindLeased only
	Lease       time.Duration // of one claim, without heartbeats; 0 is with them
	MaxAttempts int
	Priority    int           // added to each task's own in the choice between types
	Keep        time.Duration // how long finished tasks stay in the history; 0: they do not get there

	MaxRunning      int           // calls at once in one relay; 0 is any number
	MaxRunningTotal int           // calls at once in all relays; 0 is any number
	Rate            int           // tasks that may start in RatePer, in all relays; 0 is any number
	RatePer         time.Duration // 0 where Rate is

	backoff    func() retry.Backoff
	middleware []Middleware
	call       Func
	place      string
	options    []outbox.Option // of the task type, for the payload of its next iteration

	noHeartbeat bool
}

// Call is one call of a handler: one task, or several of one type for a Batch handler.
type Call struct {
	Type  string
	Kind  Kind
	Tasks []*outbox.Task[json.RawMessage]
	Claim Claim
	tx    *sql.Tx
}

// Claim is the claim that took the tasks of a call, by the clock of its process: when it began, and when it had them. Both are zero where
// no relay runs the handler, as in outboxtest.Drain.
type Claim struct{ Began, Ended time.Time }

// Run calls the handler with its middleware. tx is nil for KindLeased. It does not recover panics.
func (h *Handler) Run(ctx context.Context, tx *sql.Tx, claim Claim, tasks []*outbox.Task[json.RawMessage]) error {
	return h.checkAgain(tasks, h.call(ctx, &Call{Type: h.Type, Kind: h.Kind, Tasks: tasks, Claim: claim, tx: tx}))
}

// Backoff is how long to wait after the given number of attempts failed, and whether the backoff says
// to stop retrying. The wait is between 0 and 24 h. If the app's backoff panics or ends its goroutine, err says so,
// and the wait is that of the default backoff.
func (h *Handler) Backoff(attempts int) (wait time.Duration, stop bool, err error) {
	err = guard.Call(func() { wait, stop = waitAfter(h.backoff(), attempts) })
	if err != nil {
		wait, stop = waitAfter(defaultBackoff(), attempts)
	}
	return wait, stop, err
}

func waitAfter(b retry.Backoff, attempts int) (wait time.Duration, stop bool) {
	for range max(attempts, 1) {
		if wait, stop = b.Next(); stop {
			return 0, true
		}
	}
	return min(max(wait, 0), maxBackoff), false
}

// Option changes one registration.
type Option func(*Handler)

// Timeout bounds one run of the handler: its context ends then, and for Tx and Batch the server cancels
// the statement that runs. 0 means the default: 30 s for Tx and Batch, which is also the most, and 5
// minutes for Leased, where negative means none. A task's own [outbox.Timeout] comes first.
func Timeout(d time.Duration) Option { return func(h *Handler) { h.Timeout = d } }

// NoHeartbeat makes the tasks of a Leased handler show by themselves that they get on: their relay's heartbeats do not
// keep such a task, only its own lease does, which lasts from the claim on for the given time, and is moved by
// [outbox.Task.Extend] alone. When it has run out, the handler's context ends with the cause outbox.ErrLeaseLost, and any
// relay may take the task over, though the process lives; that is an attempt. A process that dies still loses its tasks
// with its heartbeat, after 10 s. The lease takes the place of Timeout; a task's own [outbox.Timeout] is its lease then. It is
// between 100 ms and outbox.MaxTimeout.
func NoHeartbeat(lease time.Duration) Option {
	return func(h *Handler) { h.Lease, h.noHeartbeat = lease, true }
}

// MaxAttempts is how often a task is started before it becomes a dead letter, unless it says otherwise
// itself. 0 means 10; the most is 32767.
func MaxAttempts(n int) Option { return func(h *Handler) { h.MaxAttempts = n } }

// Priority is added to the priority of each task of this type when a relay chooses between types; lower
// runs first. It must fit an int16.
func Priority(p int) Option { return func(h *Handler) { h.Priority = p } }

// Keep writes each finished task of this type to the history (table outbox.done_task, admin.Finished), in the transaction that
// finishes it, and keeps it there for d by PostgreSQL's clock. It costs one more row written for each task, and the payload of a
// Tx or Batch task goes to the server once more. 0 means that finished tasks are not kept, the default; the most is 100 years.
// Tasks that went to the dead letters are not in the history, nor those whose handler committed the claim's transaction itself.
func Keep(d time.Duration) Option { return func(h *Handler) { h.Keep = d } }

// Backoff is a factory of go-retry backoffs: the wait before attempt n + 1 is the n-th value of a new one.
// When it says stop, the task becomes a dead letter. Waits are capped at 24 h. The default is exponential
// from 1 s with jitter, at most 1 h. It must be safe for concurrent calls; registration makes the first.
//
// The attempt counts also if the factory or its backoff panics, say as a table has fewer waits than there are attempts.
// The task waits by the default backoff then, and the relay logs an error with the task type.
func Backoff(factory func() retry.Backoff) Option { return func(h *Handler) { h.backoff = factory } }

// MaxRunning is how many calls of the handler run at once in one relay; a Batch handler's call is one, however many tasks
// it has. 0 means as many as the relay has workers for.
func MaxRunning(n int) Option { return func(h *Handler) { h.MaxRunning = n } }

// MaxRunningTotal is how many calls of the handler run at once in all relays that registered the type with this option,
// in whatever process; a Batch handler's call is one, however many tasks it has. 0 means any number; the most is 1,000.
//
// A call has its share from its claim until its result is committed. The share of a process that dies is free again as
// soon as its tasks are: at once for Tx and Batch, when its lease ends (10 to 15 s) for Leased. A Leased handler that goes
// on although its lease is lost does not count any more. The limit is stored in outbox.task_type when a relay starts, and
// the last one that started counts for all; when it is lowered, what runs goes on. A relay that registered the type
// without the option is not limited and not counted. It costs each claim of the type one more statement.
func MaxRunningTotal(n int) Option { return func(h *Handler) { h.MaxRunningTotal = n } }

// Rate is how many tasks of the type start in a time, in all relays that registered it with this option: n in each
// duration per, at an even pace. What was not used is saved up, to a tenth of n (at least one task), and may start at once later;
// so in any time of length per at most n + n/5 + 2 tasks start. Each attempt counts; of a batch that failed and is run again
// one by one, each task counts once. A Batch handler gets as many tasks as may start. The clock is the database's.
//
// The rate is stored in outbox.task_type when a relay starts, and the last one that started counts for all. n is at most
// 1,000,000, per at most 31 days, and n at most 100,000 a second. Rate(0, 0) means any number. It costs about one more
// statement for each claim of the type.
func Rate(n int, per time.Duration) Option {
	return func(h *Handler) { h.Rate, h.RatePer = n, per }
}

// Use adds middleware around this handler, inside that of the registry.
func Use(m ...Middleware) Option {
	return func(h *Handler) { h.middleware = append(h.middleware, m...) }
}

// defaultBackoff waits a random part of 1 s, 2 s, 4 s … 1 h, but at least a tenth of it, so that a retry
// is never at once.
func defaultBackoff() retry.Backoff {
	b := retry.WithCappedDuration(time.Hour, retry.NewExponential(time.Second))
	return retry.BackoffFunc(func() (time.Duration, bool) {
		d, stop := b.Next()
		return d/10 + rand.N(d-d/10), stop
	})
}

func newHandler(kind Kind, taskType string, size int, opts []Option, call Func) *Handler {
	h := &Handler{Type: taskType, Kind: kind, BatchSize: size, backoff: defaultBackoff, call: call}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, o := range opts {
		if o == nil {
			fail("an Option is nil")
			continue
		}
		o(h)
	}
	if h.MaxAttempts == 0 {
		h.MaxAttempts = DefaultMaxAttempts
	}
	if h.noHeartbeat {
		switch {
		case kind != KindLeased:
			fail("NoHeartbeat: a %s handler has no lease", kind)
		case h.Timeout != 0:
			fail("NoHeartbeat and Timeout(%v): the lease is the timeout", h.Timeout)
		case h.Lease < minLease || h.Lease > outbox.MaxTimeout:
			fail("NoHeartbeat(%v): must be between %v and %v", h.Lease, minLease, outbox.MaxTimeout)
		}
	}
	if kind == KindLeased {
		switch {
		case h.noHeartbeat:
			h.Timeout = 0
		case h.Timeout == 0:
			h.Timeout = DefaultLeasedTimeout
		case h.Timeout < 0:
			h.Timeout = 0
		}
	} else {
		if h.Timeout == 0 {
			h.Timeout = MaxTxTimeout
		}
		if h.Timeout < time.Millisecond || h.Timeout > MaxTxTimeout {
			fail("Timeout(%v): a %s handler holds a transaction open, so it must be between 1ms and %v: use Leased for longer work", h.Timeout, kind, MaxTxTimeout)
		}
	}
	if h.MaxAttempts < 1 || h.MaxAttempts > math.MaxInt16 {
		fail("MaxAttempts(%d): must be between 1 and %d, or 0 for %d", h.MaxAttempts, math.MaxInt16, DefaultMaxAttempts)
	}
	if h.Priority < math.MinInt16 || h.Priority > math.MaxInt16 {
		fail("Priority(%d): must be between %d and %d", h.Priority, math.MinInt16, math.MaxInt16)
	}
	if h.MaxRunning < 0 {
		fail("MaxRunning(%d): must be at least 1, or 0 for any number", h.MaxRunning)
	}
	if h.MaxRunningTotal < 0 || h.MaxRunningTotal > maxRunningTotal {
		fail("MaxRunningTotal(%d): must be between 1 and %d, or 0 for any number", h.MaxRunningTotal, maxRunningTotal)
	}
	switch {
	case h.Rate == 0 && h.RatePer == 0:
	case h.Rate < 1 || h.Rate > maxRate || h.RatePer < time.Millisecond || h.RatePer > maxRatePer || h.RatePer/time.Duration(h.Rate) < leastRateStep:
		fail("Rate(%d, %v): must be between 1 and %d tasks in 1ms to %v, at most 100,000 a second, or 0 in 0 for any number", h.Rate, h.RatePer, maxRate, maxRatePer)
	}
	if h.Keep < 0 || h.Keep > maxKeep || h.Keep > 0 && h.Keep < time.Microsecond {
		fail("Keep(%v): must be between 1µs and %v, or 0 to keep nothing", h.Keep, maxKeep)
	}
	if h.BatchSize < 1 || h.BatchSize > maxBatchSize {
		fail("size %d: must be between 1 and %d", h.BatchSize, maxBatchSize)
	}
	if h.backoff == nil {
		fail("Backoff: the factory is nil")
	} else if h.backoff() == nil {
		fail("Backoff: the factory returns nil")
	}
	if hasNil(h.middleware) {
		fail("Use: a Middleware is nil")
	}
	if len(errs) > 0 {
		panic(fmt.Sprintf("handlers: %s: %v", taskType, errors.Join(errs...)))
	}
	return h
}
