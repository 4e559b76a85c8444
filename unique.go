package outbox

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// payloadKey stands for the key that the database makes of the payload, and begins those keys.
const payloadKey = "$payload"

// uniqueKey is the request of Unique or UniquePayload.
type uniqueKey struct {
	key       string // "" if the database makes it of the payload
	ofPayload bool
	untilDone bool
	period    time.Duration
	nilOption bool
	ofType    bool // a default of the task type
	mixed     bool // Unique and UniquePayload are in one call
}

// set makes u the key that is asked for, in place of an earlier one.
func (u *uniqueKey) set(s *settings) {
	if old := s.unique; old != nil && !old.ofType {
		u.mixed = old.mixed || old.ofPayload != u.ofPayload
	}
	s.unique = u
}

// endOfDefaults is behind the options of a task type: Unique may replace its UniquePayload.
func endOfDefaults(s *settings) {
	if s.unique != nil {
		s.unique.ofType = true
	}
}

// UniqueOption changes how long a unique key is taken. A nil one is refused with ErrInvalidOption.
type UniqueOption interface{ applyKey(*uniqueKey) }

type uniqueOption func(*uniqueKey)

func (o uniqueOption) applyKey(u *uniqueKey) { o(u) }

// Unique allows at most one waiting task of this type with the key, at any time. A task waits while it is
// due, scheduled, or about to be retried. When its run begins the key is free, so that an Enqueue during the
// run makes a second task, which sees what the first one may not have seen: whether an Enqueue created a task
// or found one, a run will start after its transaction has committed, unless [UntilDone], [For] or an expiry
// says otherwise: a task that an Enqueue finds may expire before it begins, with its own expiry or with that
// of [OnConflict].
//
// If the key is taken no task is created. [OnConflict] chooses the change of the task that has it,
// and [Enqueued] has the outcome. A run that fails is retried, and has its key again unless a newer
// task took it meanwhile; then both will run, and the newer one has the key.
//
// The key is 1 to 256 bytes of valid UTF-8 without NUL and must not begin with "$payload". Keys of
// different task types are different. Unique and [UniquePayload] in one call are
// ErrInvalidOption; either replaces the other as a default of the task type. Enqueue all tasks of a
// key with [UntilDone], or none: the option of the task that has the key counts.
//
// Enqueue never waits for a handler, nor a handler's claim for it. Of two open transactions that
// enqueue the same key the second waits until the first has ended. So transactions that enqueue
// several keys in several calls, in different orders, can deadlock, and PostgreSQL ends one with
// 40P01. A single EnqueueMany sorts its keys and cannot. Enqueue with keys at the end of a handler.
// Above READ COMMITTED a keyed Enqueue can fail with 40001: repeat the transaction.
//
// The database role needs EXECUTE on the function enqueue_keyed of the outbox's schema, and no
// right on its tables.
func Unique(key string, opts ...UniqueOption) Option {
	return option(func(s *settings) { newUniqueKey(uniqueKey{key: key}, opts).set(s) })
}

func newUniqueKey(u uniqueKey, opts []UniqueOption) *uniqueKey {
	for _, o := range opts {
		if o == nil {
			u.nilOption = true
			continue
		}
		o.applyKey(&u)
	}
	return &u
}

// UniquePayload is [Unique] with a key that PostgreSQL makes of the payload: "$payload:" and a
// SHA-256. With a [Codec] Enqueue makes the same key of the plain payload. Payloads that are equal as
// jsonb have the same key, however they are written: white space, the order of object keys, repeated
// keys, escapes, and 1.50 or 15e-1 for 1.5 make no difference. Calls that enqueue the same payloads with
// and without a Codec, as during its first deploy, can deadlock (40P01).
func UniquePayload(opts ...UniqueOption) Option {
	return option(func(s *settings) { newUniqueKey(uniqueKey{ofPayload: true}, opts).set(s) })
}

// UntilDone makes the task keep its key while it runs and through its retries, until it is done,
// dead, canceled or expired. A running task is never changed: an Enqueue then finds it and has
// OutcomeSkipped, whatever [OnConflict] says, and no further run starts on its account.
//
// The transaction that removes the task, a Tx or Batch handler's or that of Task.Complete, is the
// exception: there the key is free, unless [For] holds it, and an Enqueue creates the task that
// follows. If the handler's result is that its own task goes on, as by handlers.RunAgain, that task
// keeps the key and the created one is dropped with the commit.
func UntilDone() UniqueOption { return uniqueOption(func(u *uniqueKey) { u.untilDone = true }) }

// maxPeriod is the longest For.
const maxPeriod = 100 * 365 * 24 * time.Hour

// For keeps the key for d after the Enqueue that creates the task, by PostgreSQL's clock, whatever becomes of
// the task: it runs, is done, dead, canceled or expired. So at most one task with the key is created within d.
// [After] does not put the end off. An Enqueue that finds the key has OutcomeSkipped and the id of that task, which
// may be gone; [OnConflict] changes the task only while it waits. The For of such an Enqueue has no effect. After d
// the key is as of [Unique], or of [UntilDone] beside For.
//
// 0 is no period; d is at most 100 years. Each key is a row of unique_key for d; relays sweep it some time
// later. A relay of a version without the option sweeps it when the task is gone.
func For(d time.Duration) UniqueOption { return uniqueOption(func(u *uniqueKey) { u.period = d }) }

// Conflict is the change of a waiting task whose unique key another Enqueue names.
type Conflict string

// The changes of a waiting task.
const (
	// ConflictSkip leaves the task as it is. It is the default, as is "".
	ConflictSkip Conflict = "skip"
	// ConflictReplace gives the task the Enqueue's payload and options. It begins anew: at attempt
	// 1, without errors. Its timeline says when it was replaced, if an attempt had failed. It keeps
	// its id, CreatedAt, iterations, ordering key, SkipFailed, UntilDone and the end of For.
	ConflictReplace Conflict = "replace"
	// ConflictReschedule gives the task the Enqueue's due time, and its expiry or none, and nothing else, so
	// attempts go on.
	// With [After] it is a debounce: the task runs once nothing was enqueued under its key for so
	// long.
	ConflictReschedule Conflict = "reschedule"
)

// OnConflict chooses the change of the waiting task that already has the key of [Unique] or
// [UniquePayload]. Without it that is ConflictSkip: none.
func OnConflict(c Conflict) Option {
	return option(func(s *settings) { s.onConflict = cmp.Or(c, ConflictSkip) })
}

func (u *uniqueKey) check() error {
	switch {
	case u == nil:
		return nil
	case u.nilOption:
		return fmt.Errorf("%w: Unique: a UniqueOption is nil", ErrInvalidOption)
	case u.mixed:
		return fmt.Errorf("%w: Unique and UniquePayload: a task has one key: use one of them", ErrInvalidOption)
	case u.period < 0 || u.period > maxPeriod || u.period > 0 && u.period < time.Microsecond:
		return fmt.Errorf("%w: Unique: For(%v): must be between 1µs and %v, or 0 for no period", ErrInvalidOption, u.period,
			maxPeriod)
	case u.ofPayload:
		return nil
	case u.key == "":
		return fmt.Errorf("%w: Unique: the key is empty", ErrInvalidOption)
	case len(u.key) > maxKeyBytes:
		return fmt.Errorf("%w: Unique(%.32q…): %d bytes, at most %d", ErrInvalidOption, u.key, len(u.key), maxKeyBytes)
	case !storable(u.key):
		return fmt.Errorf("%w: Unique(%q): a key must be valid UTF-8 without NUL", ErrInvalidOption, u.key)
	case strings.HasPrefix(u.key, payloadKey):
		return fmt.Errorf("%w: Unique(%q): keys that begin with %s are those of UniquePayload", ErrInvalidOption, u.key,
			payloadKey)
	}
	return nil
}
