package handlers

import (
	"bytes"
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
)

// Handler is one registered handler, as a relay sees it.
type Handler struct {
	Type        string
	Kind        Kind
	BatchSize   int           // tasks of one claim; 1 unless the kind is KindBatch
	Timeout     time.Duration // of one run; 0 is none, for KindLeased only
	MaxAttempts int
	Priority    int // added to each task's own in the choice between types

	backoff    func() retry.Backoff
	middleware []Middleware
	call       Func
	place      string
}

// Call is one call of a handler: one task, or several of one type for a Batch handler.
type Call struct {
	Type  string
	Kind  Kind
	Tasks []*outbox.Task[json.RawMessage]
	tx    *sql.Tx
}

// Run calls the handler with its middleware. tx is nil for KindLeased. It does not recover panics.
func (h *Handler) Run(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[json.RawMessage]) error {
	return h.call(ctx, &Call{Type: h.Type, Kind: h.Kind, Tasks: tasks, tx: tx})
}

// Backoff is how long to wait after the given number of attempts failed, and whether the backoff says
// to stop retrying. It is between 0 and 24 h.
func (h *Handler) Backoff(attempts int) (wait time.Duration, stop bool) {
	b := h.backoff()
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
// minutes for Leased, where negative means none.
func Timeout(d time.Duration) Option { return func(h *Handler) { h.Timeout = d } }

// MaxAttempts is how often a task is started before it becomes a dead letter, unless it says otherwise
// itself. 0 means 10; the most is 32767.
func MaxAttempts(n int) Option { return func(h *Handler) { h.MaxAttempts = n } }

// Priority is added to the priority of each task of this type when a relay chooses between types; lower
// runs first. It must fit an int16.
func Priority(p int) Option { return func(h *Handler) { h.Priority = p } }

// Backoff is a factory of go-retry backoffs: the wait before attempt n + 1 is the n-th value of a new one.
// When it says stop, the task becomes a dead letter. Waits are capped at 24 h. The default is exponential
// from 1 s with full jitter, at most 1 h. It must be safe for concurrent calls; registration makes the first.
func Backoff(factory func() retry.Backoff) Option { return func(h *Handler) { h.backoff = factory } }

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
	if kind == KindLeased {
		switch {
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

// unmarshal decodes a payload; numbers in an any become json.Number, so none loses digits. Its errors
// name the place and the types, never the value.
func unmarshal(payload json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	err := d.Decode(into)
	var t *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &t):
		if t.Field == "" {
			return fmt.Errorf("handlers: the payload does not decode: it does not fit %v", t.Type)
		}
		return fmt.Errorf("handlers: the payload does not decode: field %q does not fit %v", t.Field, t.Type)
	}
	return fmt.Errorf("handlers: the payload does not decode into a %T", into)
}
