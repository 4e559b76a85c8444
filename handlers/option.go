package handlers

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
)

// MaxTxTimeout is the longest, and the default, timeout of Tx and Batch handlers. An open
// transaction keeps VACUUM from its work in the whole database.
const MaxTxTimeout = 30 * time.Second

const (
	defaultLeasedTimeout = 5 * time.Minute
	defaultMaxAttempts   = 20

	maxBatchSize = 10_000
	minLease     = 100 * time.Millisecond

	maxRunning       = 1000
	maxRunningPerKey = 100
	maxRate          = 1_000_000
	maxRatePer       = 31 * 24 * time.Hour
	leastRateStep    = 10 * time.Microsecond
	maxGroup         = 1000
	maxWithin        = time.Second
	defaultWithin    = 20 * time.Millisecond
	maxRetention     = 100 * 365 * 24 * time.Hour
)

// registration is a handler with what was said when it was registered.
type registration struct {
	handler.Handler
	noHeartbeat bool
	strict      bool
	middleware  []Middleware
	call        Func
	place       string
}

// Option changes one registration. The registration panics if an Option is nil or its value is out
// of range.
type Option func(*registration)

// Timeout bounds one run of the handler: its context ends then, and for Tx and Batch the server
// cancels the statement that runs. 0 means the default: 30 s for Tx and Batch, which is also the
// most, and 5 minutes for Leased, where negative means none. A task's own [outbox.Timeout] comes
// first.
func Timeout(d time.Duration) Option { return func(r *registration) { r.Timeout = d } }

// NoHeartbeat holds each task of a Leased handler by its lease alone: the relay's heartbeats do not
// extend it. The lease ends the given time after the claim; [outbox.Task.Extend] moves its end. At
// its end the handler's context ends with the cause outbox.ErrLeaseLost, and any relay may take the
// task over, though the process lives; that is an attempt. A process that dies still loses its
// tasks 10 s after its last heartbeat. The lease takes the place of [Timeout], and a task's own
// [outbox.Timeout] is its lease. lease is between 100 ms and outbox.MaxTimeout.
func NoHeartbeat(lease time.Duration) Option {
	return func(r *registration) { r.Lease, r.noHeartbeat = lease, true }
}

// MaxAttempts is how often a task is started before it becomes a dead letter, unless it says
// otherwise itself. 0 means 20; the most is 32767.
func MaxAttempts(n int) Option { return func(r *registration) { r.MaxAttempts = n } }

// Priority is added to the priority of each task of this type when a relay chooses between types;
// lower runs first. It must fit an int16.
func Priority(p int) Option { return func(r *registration) { r.Priority = p } }

// Retention writes each finished task of this type to the history (table outbox.done_task, which
// admin.Client.Tasks reads), in the transaction that finishes it, and keeps it there for d by
// PostgreSQL's clock. It costs one more row written for each task, and the payload of a Tx or Batch
// task goes to the server once more. 0 means that finished tasks are not kept, the default; the
// most is 100 years. Tasks that went to the dead letters are not in the history, nor those whose
// handler committed the claim's transaction itself.
func Retention(d time.Duration) Option { return func(r *registration) { r.Retention = d } }

// Backoff says how long a task waits after a failed attempt, and whether it is tried again at all:
// else it is a dead letter with the reason handler. attempt is [outbox.Task.Attempt] of the run that
// failed: 1 after the first. err is the handler's error, or that of the commit. A wait is cut to
// between 0 and 24 h, and spread by 10 % to both sides: see [NoJitter]. The default waits 1 s, 3 s,
// 9 s and so on, at most 7 h. [GoRetry] makes a schedule of a go-retry backoff.
//
// The schedule is not asked after the last of [MaxAttempts], nor for a result that has its own wait.
// A run that counts no attempt, as its connection was lost, waits as after attempt 1; it makes no
// dead letter. The schedule must be safe for concurrent calls and return at once: the handler's
// transaction may be open.
//
// If the schedule panics, the attempt counts, the task waits as by default, and the relay logs an
// error with the task type.
func Backoff(schedule func(attempt int, err error) (wait time.Duration, again bool)) Option {
	return func(r *registration) { r.Schedule = schedule }
}

// GoRetry is a schedule for [Backoff] from backoffs of package github.com/sethvargo/go-retry, or of
// any type with their method: the wait after attempt n is the n-th value of a new backoff. When
// that says stop, the task is a dead letter. The factory must be safe for concurrent calls; GoRetry
// calls it once, and panics if it returns nil.
func GoRetry[B interface {
	Next() (wait time.Duration, stop bool)
}](factory func() B) func(attempt int, err error) (wait time.Duration, again bool) {
	if factory == nil || any(factory()) == nil {
		panic("handlers: GoRetry: the factory is nil, or returns nil")
	}
	return handler.Series(factory)
}

// NoJitter keeps the waits of [Backoff] and [RetryAfter] as they are. Tasks that failed together,
// as in an outage of what they call, are due together then.
func NoJitter() Option { return func(r *registration) { r.NoJitter = true } }

// MaxElapsed bounds the retries of a task by time: where its next attempt would be due more than d
// after its first failure, by PostgreSQL's clock, it is a dead letter with the reason handler. A
// redrive begins anew. Without [MaxAttempts] the number of attempts has no limit then; with it, the
// first of the two counts. 0 means any time, the default. Within d a [RetryAfter] counts no attempt.
func MaxElapsed(d time.Duration) Option { return func(r *registration) { r.MaxElapsed = d } }

// DiscardExpired removes a task of this type that has expired (outbox.ExpiresAt, ExpiresAfter) in place of
// making it a dead letter. The relay logs it, and outbox.Stats counts it as Expired. The history does not
// have it. While no relay lives that has the type for an hour after the expiry, it is a dead letter all the
// same: other relays do not know the option.
func DiscardExpired() Option { return func(r *registration) { r.DiscardExpired = true } }

// MaxRunningPerRelay is how many calls of the handler run at once in one relay; a Batch handler's
// call is one, however many tasks it has. 0 means as many as the relay has workers for.
func MaxRunningPerRelay(n int) Option { return func(r *registration) { r.MaxRunningPerRelay = n } }

// MaxRunning is how many calls of the handler run at once in all relays that registered the type
// with this option, in any process; a Batch handler's call is one, however many tasks it has. 0
// means any number; the most is 1,000. See [MaxRunningPerRelay] for a limit of each relay.
//
// A call counts from its claim until its result is committed. The calls of a process that dies
// count until its tasks are free: at once for Tx and Batch, when the lease ends (10 to 15 s) for
// Leased. A Leased handler that goes on although its lease is lost does not count any more. The
// limit is stored in outbox.task_type when a relay starts, and the last one that started counts for
// all; when it is lowered, what runs goes on. A relay that registered the type without the option
// is not limited and not counted. It costs each claim of the type one more statement.
func MaxRunning(n int) Option { return func(r *registration) { r.MaxRunning = n } }

// MaxRunningPerKey is how many tasks of the type with one key of [outbox.GroupBy] run at once in all
// relays. Tasks without a key have no such limit. The most is 100. If n is 0, the stored number stays;
// if none is stored, it is one.
//
// A key has n places, and a task runs only with a place. It has the place from when it is ready until its
// result is committed, also while all workers are busy. A retry, a snooze or a later time frees the place.
// The death of the process does not: the task keeps it, and runs again. A Leased handler that goes on
// although its lease is lost does not count any more.
//
// The number is stored in outbox.task_type when a relay starts, and the last one that started counts for
// all. When it is lowered, what runs goes on. When it is raised, waiting tasks get the new places.
func MaxRunningPerKey(n int) Option { return func(r *registration) { r.MaxRunningPerKey = n } }

// Rate bounds how many tasks of the type start in all relays that registered it with this option: n
// in each duration per, at an even pace. Unused starts are saved up, to a tenth of n (at least one
// task), and may happen at once later; so in any time of length per at most n + n/5 + 2 tasks start.
// Each attempt counts; of a batch that failed and is run again one by one, each task counts
// once. A Batch handler gets as many tasks as may start. The clock is the database's.
//
// The rate is stored in outbox.task_type when a relay starts, and the last one that started counts
// for all. n is at most 1,000,000, per is between 1 ms and 31 days, and n at most 100,000 a second.
// Rate(0, 0) means any number. It costs about one more statement for each claim of the type.
func Rate(n int, per time.Duration) Option {
	return func(r *registration) { r.Rate, r.RatePer = n, per }
}

// GroupCommit lets up to n tasks of a Tx handler share one transaction, each under a savepoint of
// its own. The handler is called for one task at a time, as without it. A task that fails is rolled
// back to its savepoint and recorded; the others keep their work. The group commits when n tasks
// are done, when within has passed since the first of them began, or when nothing more is ready. A
// handler that is always slow thus has a transaction for each task. One that is slow now and then
// holds up the rest of its group meanwhile.
//
// Later tasks of a group are still waiting tasks in tx: a handler can cancel one, or replace it by
// its unique key. A task that a handler changes leaves the group. A task that failed waits for its
// retry. outbox.Stats counts tasks whose turn has come as ready until the group commits.
//
// Until the group commits, its locks are held and its writes are not seen by others. A deadlock, a
// lock that took too long, a lost connection, a constraint that is checked at COMMIT or a handler
// that does not return undoes the group: its tasks run again one by one, and only there an attempt
// counts. All handlers of a group get the same tx. One that commits it, or goes on in a goroutine
// after it returned, gives up the guarantees for its group. Prepared statements and advisory locks
// of the session last until the group commits; all else that a handler sets in its session is put
// back before the next one.
//
// n is at most 1,000; 0 and 1 mean one task. PostgreSQL keeps 64 subtransactions of a transaction
// at hand: with more that write, reads of other transactions take longer. within is at most 1 s; 0
// means 20 ms.
//
// Experimental: a minor version may change it.
func GroupCommit(n int, within time.Duration) Option {
	return func(r *registration) { r.GroupSize, r.GroupWithin = n, within }
}

// Strict fails the attempt if the payload has a field that P does not have, or lacks a field that P
// marks as required:
//
//	type Welcome struct {
//		Email string `json:"email" outbox:"required"`
//	}
//
// Without Strict encoding/json ignores an unknown field and leaves a missing one zero, as after a
// deploy that renamed the field. The relay then warns once of each unknown field of a type.
//
// The error names the fields, as address.zip, items[].sku or prices.*.cents. The attempt counts, and
// the task is retried, so the next deploy can repair the type. A field with the value null is
// present. Strict does not look into interfaces and types with methods UnmarshalJSON or
// UnmarshalText. It compares names as encoding/json does, without case. The tag is experimental: a
// minor version may change it.
func Strict() Option { return func(r *registration) { r.strict = true } }

// Use adds middleware around this handler, inside that of the registry. A nil Middleware makes the
// registration panic.
func Use(m ...Middleware) Option {
	m = slices.Clone(m)
	return func(r *registration) { r.middleware = append(r.middleware, m...) }
}

// newRegistration applies the options, and panics if one is out of range.
func newRegistration(h handler.Handler, opts []Option) *registration {
	r := &registration{Handler: h}
	r.Schedule = handler.DefaultSchedule
	var errs []error
	refuse := func(invalid bool, format string, args ...any) {
		if invalid {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, o := range opts {
		if refuse(o == nil, "an Option is nil"); o != nil {
			o(r)
		}
	}
	switch {
	case r.noHeartbeat && r.Kind != outbox.KindLeased:
		refuse(true, "NoHeartbeat: a %s handler has no lease", r.Kind)
	case r.noHeartbeat:
		refuse(r.Timeout != 0, "NoHeartbeat and Timeout(%v): the lease is the timeout; Timeout(0) takes a default back", r.Timeout)
		refuse(r.Lease < minLease || r.Lease > outbox.MaxTimeout, "NoHeartbeat(%v): must be between %v and %v", r.Lease, minLease, outbox.MaxTimeout)
	case r.Kind == outbox.KindLeased:
		r.Timeout = max(0, cmp.Or(r.Timeout, defaultLeasedTimeout))
	default:
		r.Timeout = cmp.Or(r.Timeout, MaxTxTimeout)
		refuse(r.Timeout < time.Millisecond || r.Timeout > MaxTxTimeout,
			"Timeout(%v): a %s handler holds a transaction open, so it must be between 1ms and %v: use Leased for longer work", r.Timeout, r.Kind, MaxTxTimeout)
	}
	refuse(r.MaxElapsed < 0, "MaxElapsed(%v): must be positive, or 0 for any time", r.MaxElapsed)
	if r.MaxElapsed > 0 {
		r.MaxAttempts = cmp.Or(r.MaxAttempts, math.MaxInt16)
	}
	r.MaxAttempts = cmp.Or(r.MaxAttempts, defaultMaxAttempts)
	refuse(r.MaxAttempts < 1 || r.MaxAttempts > math.MaxInt16,
		"MaxAttempts(%d): must be between 1 and %d, or 0 for %d", r.MaxAttempts, math.MaxInt16, defaultMaxAttempts)
	refuse(r.Priority < math.MinInt16 || r.Priority > math.MaxInt16,
		"Priority(%d): must be between %d and %d", r.Priority, math.MinInt16, math.MaxInt16)
	refuse(r.MaxRunningPerRelay < 0,
		"MaxRunningPerRelay(%d): must be at least 1, or 0 for any number", r.MaxRunningPerRelay)
	refuse(r.MaxRunning < 0 || r.MaxRunning > maxRunning,
		"MaxRunning(%d): must be between 1 and %d, or 0 for any number", r.MaxRunning, maxRunning)
	refuse(r.MaxRunningPerKey < 0 || r.MaxRunningPerKey > maxRunningPerKey,
		"MaxRunningPerKey(%d): must be between 1 and %d, or 0 for the stored number", r.MaxRunningPerKey,
		maxRunningPerKey)
	if r.Rate != 0 || r.RatePer != 0 {
		refuse(r.Rate < 1 || r.Rate > maxRate || r.RatePer < time.Millisecond || r.RatePer > maxRatePer || r.RatePer/time.Duration(r.Rate) < leastRateStep,
			"Rate(%d, %v): must be between 1 and %d tasks in 1ms to %v, at most 100,000 a second, or 0 in 0 for any number", r.Rate, r.RatePer, maxRate, maxRatePer)
	}
	refuse(r.GroupSize != 0 && r.Kind != outbox.KindTx, "GroupCommit: a %s handler has none: it is for Tx", r.Kind)
	refuse(r.GroupSize < 0 || r.GroupSize > maxGroup || r.GroupWithin < 0 || r.GroupWithin > maxWithin,
		"GroupCommit(%d, %v): must be between 1 and %d tasks, or 0 for one, and within at most %v, or 0 for %v", r.GroupSize, r.GroupWithin, maxGroup, maxWithin, defaultWithin)
	r.GroupWithin = cmp.Or(r.GroupWithin, defaultWithin)
	refuse(r.Retention < 0 || r.Retention > maxRetention || r.Retention > 0 && r.Retention < time.Microsecond,
		"Retention(%v): must be between 1µs and %v, or 0 to keep nothing", r.Retention, maxRetention)
	refuse(r.BatchSize < 1 || r.BatchSize > maxBatchSize, "size %d: must be between 1 and %d", r.BatchSize, maxBatchSize)
	refuse(r.Schedule == nil, "Backoff: the schedule is nil")
	refuse(hasNil(r.middleware), "Use: a Middleware is nil")
	if len(errs) > 0 {
		panic(fmt.Sprintf("handlers: %s: %v", r.Type, errors.Join(errs...)))
	}
	return r
}
