// Package handler is what a relay, and a test that runs tasks as a relay does, know of a registered
// handler and of its results. Package handlers makes them.
package handler

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/taskrun"
)

// Handler is one registered handler.
type Handler struct {
	Type        string
	Kind        outbox.Kind
	BatchSize   int           // tasks of one claim; 1 unless the kind is KindBatch
	GroupSize   int           // tasks that share a transaction of KindTx; 0: one
	GroupWithin time.Duration // from the first call of a group to the last one's begin
	Timeout     time.Duration // of one run; 0 is none, for KindLeased only
	Lease       time.Duration // of one claim, without heartbeats; 0 is with them
	MaxAttempts int
	MaxElapsed  time.Duration // from the first failure on; 0: any time
	NoJitter    bool          // the backoff's waits are not spread
	Priority    int           // added to each task's own in the choice between types
	Retention   time.Duration // how long finished tasks stay in the history; 0: they do not get there
	Forwards    bool          // it is package forward's: it waits for a broker

	DiscardExpired bool // a task that has expired is removed, and no dead letter

	MaxRunningPerRelay int           // calls at once in one relay; 0 is any number
	MaxRunning         int           // calls at once in all relays; 0 is any number
	MaxRunningPerKey   int           // tasks of a group key at once in all relays; 0 is one
	Rate               int           // tasks that may start in RatePer, in all relays; 0 is any number
	RatePer            time.Duration // 0 where Rate is

	// Run calls the handler with its middleware. tx is nil for KindLeased. It does not recover
	// panics.
	Run func(ctx context.Context, tx *sql.Tx, claim Claim, tasks []*outbox.Task[json.RawMessage]) error

	Schedule Schedule
	Options  []outbox.Option // of the task type, for the payload of its next iteration
	Codecs   *codec.Set      // of the Options
}

// Claim is the claim that took the tasks of a call, by the clock of its process: when it began, and
// when it had them; and its relay's log. It is zero where no relay runs the handler.
type Claim struct {
	Began, Ended time.Time
	Log          *slog.Logger
}

// payload is the field that differs between tasks of two payload types.
var payload, _ = reflect.TypeFor[outbox.Task[json.RawMessage]]().FieldByName("Payload")

// Fill copies each field of a task, and its lease, but not its payload.
func Fill[P any](t *outbox.Task[P], raw *outbox.Task[json.RawMessage]) {
	*taskrun.Of(t) = *taskrun.Of(raw)
	to, from := reflect.ValueOf(t).Elem(), reflect.ValueOf(raw).Elem()
	for i := range to.NumField() {
		if field := to.Field(i); i != payload.Index[0] && field.CanSet() {
			field.Set(from.Field(i))
		}
	}
}

const (
	// LeastWait bounds the waits that count no attempt, so that no handler keeps a relay busy with
	// one task.
	LeastWait = 100 * time.Millisecond
	// MaxBackoff is the longest wait after a failed attempt.
	MaxBackoff = 24 * time.Hour
)

// Schedule is how long a task waits after an attempt failed with err, and whether it is tried again.
type Schedule = func(attempt int, err error) (wait time.Duration, again bool)

// Backoff is the handler's Schedule. The wait is between 0 and 24 h, and spread by 10 % to both sides
// unless the handler has NoJitter. If the app's Schedule panics or ends its goroutine, broken says
// so, and the wait is that of the default.
func (h *Handler) Backoff(attempt int, err error) (wait time.Duration, again bool, broken error) {
	broken = guard.Call(func() { wait, again = h.Schedule(attempt, err) })
	if broken != nil {
		wait, again = DefaultSchedule(attempt, nil)
	}
	if !again {
		return 0, false, broken
	}
	wait = min(max(wait, 0), MaxBackoff)
	if !h.NoJitter {
		wait = min(wait-wait/10+rand.N(wait/5+1), MaxBackoff)
	}
	return wait, again, broken
}

// Series is a Schedule whose wait after attempt n is the n-th value of a new backoff.
func Series[B interface {
	Next() (wait time.Duration, stop bool)
}](factory func() B) Schedule {
	return func(attempt int, _ error) (wait time.Duration, again bool) {
		b, stop := factory(), false
		for range attempt {
			if wait, stop = b.Next(); stop {
				return 0, false
			}
		}
		return wait, true
	}
}

// DefaultSchedule waits 1 s, 3 s, 9 s and so on, at most 7 h. The 19 waits between 20 attempts are
// three days together.
var DefaultSchedule = Series(func() retry.Backoff {
	wait := time.Second / 3
	return retry.WithCappedDuration(7*time.Hour, retry.BackoffFunc(func() (time.Duration, bool) {
		wait = min(3*wait, MaxBackoff)
		return wait.Round(time.Second), false
	}))
})

// What package handlers tells this module's other packages and hides from apps. It sets these
// functions as it is initialised.
var (
	// Registered returns the handlers of a *handlers.Registry as they are now, sorted by type.
	Registered func(registry any) []*Handler
	// IsBatchResult reports whether an error is a handlers.BatchResult, or a pointer to one.
	IsBatchResult = func(error) bool { return false }
	// Forwards is the handlers.Option that sets Handler.Forwards.
	Forwards any
)
