package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/copied"
	"github.com/txoutbox/outbox/internal/schemaname"
)

const (
	maxTypeBytes      = 128
	maxHeaderBytes    = 4 << 10
	maxKeyBytes       = 256
	defaultMaxPayload = 256 << 10
	mostPayload       = codec.MostStored
)

// Option changes one Enqueue. Options apply in their order. A nil one is refused with
// ErrInvalidOption.
type Option interface{ apply(*settings) }

type option func(*settings)

func (o option) apply(s *settings) { o(s) }

// SchemaOption is the option [Schema]: an [Option], and the only one of [Cancel], [RunNow] and
// [Stats].
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox". Names are as of
// schema.Schema; others, and "", are ErrInvalidOption.
func Schema(name string) SchemaOption { return SchemaOption{name} }

func (o SchemaOption) apply(s *settings) { s.schema = o.name }

// schemaOf is the schema that the options name.
func schemaOf(opts []SchemaOption) (string, error) {
	name := schemaname.Default
	for _, o := range opts {
		name = o.name
	}
	return name, checkSchema(name)
}

func checkSchema(name string) error {
	if !schemaname.Valid(name) {
		return fmt.Errorf("%w: Schema(%q): %s", ErrInvalidOption, name, schemaname.Rule)
	}
	return nil
}

type settings struct {
	schema      string
	bound       *string // the schema of the Outbox that enqueues it; nil: none
	runAt       time.Time
	after       time.Duration
	expiresAt   time.Time
	expireAfter time.Duration
	priority    int
	maxAttempts int
	timeout     time.Duration
	headers     map[string]string
	headerJSON  string // "" for none
	maxPayload  int
	unique      *uniqueKey
	onConflict  Conflict
	orderingKey string
	groupKey    string
	grouped     bool
	skipFailed  bool
	ordered     bool
	hooks       []func(context.Context, *TaskSpec) error
	codecs      *codec.Set // nil: none
	codecFault  error
}

// RunAt makes the task due at t. If t is zero or past the task is due immediately. PostgreSQL's
// clock decides when t has come; the last year is 9999. Of RunAt and [After] the last one counts.
func RunAt(t time.Time) Option { return option(func(s *settings) { s.runAt, s.after = t, 0 }) }

// After makes the task due d after it is inserted, by PostgreSQL's clock. If d <= 0 the task is due
// immediately.
func After(d time.Duration) Option {
	return option(func(s *settings) { s.after, s.runAt = d, time.Time{} })
}

// ExpiresAt gives up a task that has not begun by t: its handler is not called, and the task is a dead letter
// with the reason expired, or with handlers.DiscardExpired is removed. If t is zero the task does not expire;
// the last year is 9999. Of ExpiresAt and [ExpiresAfter] the last one counts. A task that would expire before
// it is due ([RunAt], [After]) is ErrInvalidOption.
//
// The task runs if a relay claims it before t, by PostgreSQL's clock. Once an attempt has counted, or an
// iteration has ended (handlers.RunAgain), it does not expire any more: a retry may run after t. A run that was
// lost with its process or its connection has begun. Snooze and RetryAfter of package handlers count no
// attempt: a task that waits for them still expires.
//
// While a relay has the type, it ends what has expired within 10 s, also of a paused type. A redriven dead
// letter does not expire again. A relay of a version without the option runs the task all the same.
func ExpiresAt(t time.Time) Option {
	return option(func(s *settings) { s.expiresAt, s.expireAfter = t, 0 })
}

// ExpiresAfter is [ExpiresAt] the time d after the task is due: after [RunAt], or the end of [After], or else the
// Enqueue, by PostgreSQL's clock. A firing of a relay.Schedule that was missed for longer than d thus expires. If d
// is 0 the task does not expire. A d below 0, or below 1 µs, is ErrInvalidOption.
func ExpiresAfter(d time.Duration) Option {
	return option(func(s *settings) { s.expireAfter, s.expiresAt = d, time.Time{} })
}

// Priority orders the tasks of one type, and the types by their most urgent task: lower runs
// first, 0 is normal. It must fit an int16.
func Priority(p int) Option { return option(func(s *settings) { s.priority = p }) }

// MaxAttempts bounds how often the task is started before it becomes a dead letter. 0 means as its
// handler was registered; the most is 32767.
func MaxAttempts(n int) Option { return option(func(s *settings) { s.maxAttempts = n }) }

// Timeout bounds one run of the task in place of its handler's timeout, or of the lease of a type
// without heartbeats. 0 means as its handler was registered; else it is between 1 ms and
// MaxTimeout, and cut to milliseconds. Tx and Batch handlers hold a transaction open, so for their
// tasks it is cut to handlers.MaxTxTimeout; a batch may take as long as the longest of its tasks.
func Timeout(d time.Duration) Option { return option(func(s *settings) { s.timeout = d }) }

// Headers are kept beside the payload, for trace ids and the like. Keys and values together are at
// most 4 kB of valid UTF-8 without NUL. Keys that begin with "outbox-" are the library's, and are
// refused. A later Headers replaces an earlier one; nil is none. The map is copied.
func Headers(h map[string]string) Option {
	h = maps.Clone(h)
	return option(func(s *settings) { s.headers = h })
}

// AddHeaders adds to the headers that options before it have set, those of the task type included.
// It replaces those with the same keys. A nil map adds none. The map is copied. Limits are as of
// [Headers].
func AddHeaders(h map[string]string) Option {
	h = maps.Clone(h)
	return option(func(s *settings) {
		merged := make(map[string]string, len(s.headers)+len(h))
		maps.Copy(merged, s.headers)
		maps.Copy(merged, h)
		s.headers = merged
	})
}

// MaxPayload is the limit of the encoded payload in bytes, each number counted at its written-out
// length, as jsonb stores 1e400 in 401 digits. 0 means 256 KiB, the default; the most is 16 MiB.
func MaxPayload(bytes int) Option { return option(func(s *settings) { s.maxPayload = bytes }) }

// OrderedBy makes the tasks of one type and key run one after the other, in the order of their ids:
// a task starts when the one before it is done or dead. While one waits for its retry, snoozes or is
// not due yet, those behind it wait as well; see [SkipFailed]. A dead letter that is redriven runs
// when no other task of its key does, before those with higher ids.
//
// Transactions that are open at the same time have no order: of their tasks the first to commit may
// run first. Of one EnqueueMany the tasks with unique keys come last, in the order of those keys.
// Enqueueing with a key waits for nobody. The key is 1 to 256 bytes of valid UTF-8 without NUL.
func OrderedBy(key string) Option {
	return option(func(s *settings) { s.orderingKey, s.ordered = key, true })
}

// GroupBy bounds how many tasks of one type and key run at once in all processes. The number is
// handlers.MaxRunningPerKey, by default one. The key is what may be slow or have a large backlog: a
// tenant, an endpoint, a mailbox. The other tasks of the key wait, and cost no claim and no worker,
// however many there are. The most urgent one that is due runs next, then the one due longest.
//
// A task that waits for its retry, snoozes or is not due yet holds up none of its key. Enqueueing
// with a key waits for nobody. The key is 1 to 256 bytes of valid UTF-8 without NUL. Beside [OrderedBy]
// GroupBy is ErrInvalidOption: an ordering key runs one task at a time already.
func GroupBy(key string) Option {
	return option(func(s *settings) { s.groupKey, s.grouped = key, true })
}

// SkipFailed, with [OrderedBy], takes the task out of its key's order when its handler fails: the
// key goes on at once, and the retries of the task may run beside others of the key. A run that is
// lost with its process holds the key up until the task has run again. Without OrderedBy it is
// ErrInvalidOption.
func SkipFailed() Option { return option(func(s *settings) { s.skipFailed = true }) }

// plain are the settings of a task without options.
var plain = &settings{schema: schemaname.Default, maxPayload: defaultMaxPayload, onConflict: ConflictSkip}

// newSettings returns the validated, immutable settings.
func newSettings(opts []Option) (*settings, error) {
	if len(opts) == 0 {
		return plain, nil
	}
	s := &settings{schema: schemaname.Default, onConflict: ConflictSkip}
	for _, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("%w: an Option is nil", ErrInvalidOption)
		}
		o.apply(s)
	}
	if s.maxPayload == 0 {
		s.maxPayload = defaultMaxPayload
	}
	invalid := func(format string, args ...any) (*settings, error) {
		return nil, fmt.Errorf("%w: %s", ErrInvalidOption, fmt.Sprintf(format, args...))
	}
	switch year := s.runAt.UTC().Year(); {
	case s.priority < math.MinInt16 || s.priority > math.MaxInt16:
		return invalid("Priority(%d): must be between %d and %d", s.priority, math.MinInt16, math.MaxInt16)
	case s.maxAttempts < 0 || s.maxAttempts > math.MaxInt16:
		return invalid("MaxAttempts(%d): must be between 1 and %d, or 0 for the handler's", s.maxAttempts,
			math.MaxInt16)
	case s.timeout != 0 && (s.timeout < time.Millisecond || s.timeout > MaxTimeout):
		return invalid("Timeout(%v): must be between 1ms and %v, or 0 for the handler's", s.timeout, MaxTimeout)
	case s.ordered && (s.orderingKey == "" || len(s.orderingKey) > maxKeyBytes || !storable(s.orderingKey)):
		return invalid("OrderedBy: the key has %d bytes: use 1 to %d of valid UTF-8 without NUL", len(s.orderingKey),
			maxKeyBytes)
	case s.grouped && (s.groupKey == "" || len(s.groupKey) > maxKeyBytes || !storable(s.groupKey)):
		return invalid("GroupBy: the key has %d bytes: use 1 to %d of valid UTF-8 without NUL", len(s.groupKey),
			maxKeyBytes)
	case s.grouped && s.ordered:
		return invalid("GroupBy beside OrderedBy: leave GroupBy out, as one task of an ordering key runs at a time")
	case s.maxPayload < 0 || s.maxPayload > mostPayload:
		return invalid("MaxPayload(%d): must be between 1 and %d bytes, or 0 for the default", s.maxPayload,
			mostPayload)
	case year > 9999:
		return invalid("RunAt: the year %d, at most 9999", year)
	case s.expiresAt.UTC().Year() > 9999:
		return invalid("ExpiresAt: the year %d, at most 9999", s.expiresAt.UTC().Year())
	case s.expireAfter < 0 || s.expireAfter > 0 && s.expireAfter < time.Microsecond:
		return invalid("ExpiresAfter(%v): must be at least 1µs, or 0 for never", s.expireAfter)
	case s.after+s.expireAfter < s.after || s.runAt.Add(s.expireAfter).UTC().Year() > 9999:
		return invalid("ExpiresAfter(%v): it is too long", s.expireAfter)
	case s.expiresBeforeDue():
		return invalid("ExpiresAt(%v): must be after RunAt and After", s.expiresAt)
	case !slices.Contains([]Conflict{ConflictSkip, ConflictReplace, ConflictReschedule}, s.onConflict):
		return invalid("OnConflict(%.32q): must be ConflictSkip, ConflictReplace or ConflictReschedule", s.onConflict)
	}
	if err := cmp.Or(checkSchema(s.schema), s.unique.check(), s.checkHooks()); err != nil {
		return nil, err
	}
	if s.bound != nil && *s.bound != s.schema {
		return invalid("Schema(%q): the task is enqueued in the outbox In(%q)", s.schema, *s.bound)
	}
	size := 0
	for k, v := range s.headers {
		if !storable(k) || !storable(v) {
			return invalid("Headers: %q: keys and values must be valid UTF-8 without NUL", k)
		}
		if len(k) >= len(copied.Prefix) && strings.EqualFold(k[:len(copied.Prefix)], copied.Prefix) {
			return invalid("Headers: %q: keys that begin with %s are the library's", k, copied.Prefix)
		}
		size += len(k) + len(v)
	}
	if size > maxHeaderBytes {
		return invalid("Headers: %d bytes, at most %d", size, maxHeaderBytes)
	}
	s.encodeHeaders()
	return s, nil
}

// expiresBeforeDue reports whether a task that is not due at once expires before it is; that of After counts by
// the process's clock.
func (s *settings) expiresBeforeDue() bool {
	due := s.runAt
	if s.after > 0 {
		due = time.Now().Add(s.after)
	}
	return !due.IsZero() && !s.expiresAt.IsZero() && !s.expiresAt.After(due)
}

func (s *settings) encodeHeaders() {
	if len(s.headers) > 0 {
		text, _ := json.Marshal(s.headers) // strings have JSON
		s.headerJSON = string(text)
	}
}

// storable reports whether PostgreSQL can store s as text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// optionalColumn is a column that most tasks leave at its default. A statement names it only if a
// task sets it, as each column and each argument costs time.
type optionalColumn struct {
	name   string
	value  string                            // its SQL, of the values as texts
	values func(*settings) [2]sql.NullString // as many as value has %s; NULL for an option that the task does not have
	copy   func(*settings, *Task[json.RawMessage])
}

// optionalColumns are all columns that options set.
var optionalColumns = []optionalColumn{
	{"priority", "COALESCE(%s::smallint, 0)",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{number(int64(s.priority))} },
		func(s *settings, of *Task[json.RawMessage]) { s.priority = of.Priority }},
	{"max_attempts", "%s::smallint",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{number(int64(s.maxAttempts))} },
		notCopied},
	{"headers", "%s::jsonb",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{text(s.headerJSON)} },
		func(s *settings, of *Task[json.RawMessage]) { s.headers = of.Headers; s.encodeHeaders() }},
	{"run_at", "COALESCE(%s::timestamptz, clock_timestamp() + %s::bigint * interval '1 microsecond', now())",
		func(s *settings) [2]sql.NullString {
			return [2]sql.NullString{timestamp(s.runAt), number(max(s.after.Microseconds(), 0))}
		},
		notCopied},
	{"timeout_ms", "%s::integer",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{number(s.timeout.Milliseconds())} },
		notCopied},
	{"ordering_key", "%s",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{text(s.orderingKey)} },
		func(s *settings, of *Task[json.RawMessage]) {
			s.orderingKey, s.ordered = of.OrderingKey, of.OrderingKey != ""
		}},
	{"skip_failed", "COALESCE(%s::boolean, false)",
		func(s *settings) [2]sql.NullString {
			return [2]sql.NullString{{String: "true", Valid: s.skipFailed}}
		},
		notCopied},
	{"group_key", "%s",
		func(s *settings) [2]sql.NullString { return [2]sql.NullString{text(s.groupKey)} },
		func(s *settings, of *Task[json.RawMessage]) {
			if of.OrderingKey != "" { // which the copy has
				s.groupKey, s.grouped = "", false
			}
		}},
	{"unique_until", "clock_timestamp() + %s::bigint * interval '1 microsecond'",
		func(s *settings) [2]sql.NullString {
			if s.unique == nil {
				return [2]sql.NullString{}
			}
			return [2]sql.NullString{number(s.unique.period.Microseconds())}
		},
		notCopied},
	{"expires_at", "COALESCE(%s::timestamptz, clock_timestamp() + %s::bigint * interval '1 microsecond')",
		func(s *settings) [2]sql.NullString {
			switch {
			case s.expireAfter == 0:
				return [2]sql.NullString{timestamp(s.expiresAt)}
			case !s.runAt.IsZero():
				return [2]sql.NullString{timestamp(s.runAt.Add(s.expireAfter))}
			}
			return [2]sql.NullString{{}, number((max(s.after, 0) + s.expireAfter).Microseconds())}
		},
		notCopied},
}

// notCopied leaves a copy the option that it was enqueued with.
func notCopied(*settings, *Task[json.RawMessage]) {}

func text(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

func number(n int64) sql.NullString {
	return sql.NullString{String: strconv.FormatInt(n, 10), Valid: n != 0}
}

// timestamp writes t as a timestamptz literal. Times before year 1 are past as well.
func timestamp(t time.Time) sql.NullString {
	if t.IsZero() {
		return sql.NullString{}
	}
	if t = t.UTC(); t.Year() < 1 {
		t = time.Time{}
	}
	return text(t.Format("2006-01-02T15:04:05.999999Z"))
}

func (c optionalColumn) usedBy(s *settings) bool {
	v := c.values(s)
	return v[0].Valid || v[1].Valid
}

// optionalOf are the optional columns that any of the tasks needs.
func optionalOf(tasks []*settings) (needed []optionalColumn) {
	for _, c := range optionalColumns {
		if slices.ContainsFunc(tasks, c.usedBy) {
			needed = append(needed, c)
		}
	}
	return needed
}

// optionalSQL are the parts of a statement for optional columns, each behind the required part.
type optionalSQL struct {
	names, values, arrays string // arrays are for many tasks; the values are of their elements then
}

// optionalOne adds the optional columns of one task.
func optionalOne(args []any, task *settings) ([]any, optionalSQL) {
	var names, expressions strings.Builder
	for _, c := range optionalOf([]*settings{task}) {
		values, of := c.values(task), make([]any, strings.Count(c.value, "%s"))
		for i := range of {
			if of[i] = "NULL::text"; values[i].Valid {
				args = append(args, values[i].String)
				of[i] = fmt.Sprintf("$%d::text", len(args))
			}
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&expressions, ", "+c.value, of...)
	}
	return args, optionalSQL{names: names.String(), values: expressions.String()}
}

// optionalMany adds the optional columns that any of the tasks needs, as arrays.
func optionalMany(args []any, tasks []*settings) ([]any, optionalSQL) {
	var names, values, arrays strings.Builder
	for _, c := range optionalOf(tasks) {
		of := make([]any, strings.Count(c.value, "%s"))
		for i := range of {
			texts := make([]string, len(tasks)) // "" for NULL, as array_nulls may be off: no value is empty
			for j, s := range tasks {
				if v := c.values(s)[i]; v.Valid {
					texts[j] = v.String
				}
			}
			args = append(args, pq.Array(texts))
			column := fmt.Sprintf("%s_%d", c.name, i)
			of[i] = "NULLIF(" + column + ", '')"
			fmt.Fprintf(&arrays, ", unnest($%d::text[]) AS %s", len(args), column)
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&values, ", "+c.value, of...)
	}
	return args, optionalSQL{names.String(), values.String(), arrays.String()}
}
