package outbox

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/copied"
	"github.com/txoutbox/outbox/internal/guard"
)

// TaskType ties a task type's name to the Go type of its payload, for Enqueue and for the handlers.
// It is a value to keep in a package variable; it is safe for concurrent use. [NewTaskType] makes
// it; each Enqueue of the zero TaskType returns ErrInvalidType.
type TaskType[P any] struct {
	name string
	opts []Option
}

// NewTaskType names a task type whose payload is a P, as encoding/json encodes it. The options are
// defaults for each Enqueue, which can override them. It panics if name is empty, longer than 128
// bytes, not UTF-8 or holds a character that does not print, if an option is invalid, or if P is a
// struct whose fields are all unexported, or a pointer to one: encoding/json would store none of
// them. A P with MarshalJSON or MarshalText may be such a struct; struct{} is one without fields.
func NewTaskType[P any](name string, opts ...Option) TaskType[P] {
	if err := checkType(name); err != nil {
		panic(err)
	}
	if t := reflect.TypeFor[P](); hidesItsFields(t) {
		panic(fmt.Errorf("%w: task type %s: %v has no exported field, so its JSON would be {}: export the fields "+
			"(Email, not email) or implement json.Marshaler", ErrInvalidPayload, name, t))
	}
	if _, err := newSettings(opts); err != nil {
		panic(err)
	}
	if opts = slices.Clone(opts); len(opts) > 0 {
		opts = append(opts, option(endOfDefaults))
	}
	return TaskType[P]{name: name, opts: opts}
}

// In is the task type in another outbox than that of the schema "outbox": what it enqueues and prepares goes
// there. Handlers are registered for the task type as it is.
func (t TaskType[P]) In(o Outbox) TaskType[P] {
	t.opts = t.with([]Option{option(o.bind)})
	return t
}

// Name is the name of the task type, as in the column task_type.
func (t TaskType[P]) Name() string { return t.name }

// PayloadType is the Go type of the payload.
func (t TaskType[P]) PayloadType() reflect.Type { return reflect.TypeFor[P]() }

// Enqueue inserts a task with one statement on tx. See [Enqueue].
func (t TaskType[P]) Enqueue(ctx context.Context, tx Querier, payload P, opts ...Option) (Enqueued, error) {
	return Enqueue(ctx, tx, t.name, payload, t.with(opts)...)
}

// New prepares a task for EnqueueMany.
func (t TaskType[P]) New(payload P, opts ...Option) TaskSpec {
	return TaskSpec{Type: t.name, Payload: payload, Options: t.with(opts)}
}

func (t TaskType[P]) with(opts []Option) []Option {
	return append(t.opts[:len(t.opts):len(t.opts)], opts...)
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// hidesItsFields reports whether t is a struct, or a pointer to one, of which encoding/json writes
// no field though it has some. Promoted fields of embedded structs count, embedded structs do not.
func hidesItsFields(t reflect.Type) bool {
	for ; ; t = t.Elem() {
		if t.Implements(jsonMarshaler) || t.Implements(textMarshaler) {
			return false
		}
		if t.Kind() != reflect.Pointer {
			break
		}
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	hidden := false
	for _, f := range reflect.VisibleFields(t) {
		of := f.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case f.Anonymous && of.Kind() == reflect.Struct && f.Tag.Get("json") == "":
		case f.IsExported():
			return false
		default:
			hidden = true
		}
	}
	return hidden
}

func checkType(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidType)
	case len(name) > maxTypeBytes:
		return fmt.Errorf("%w: %.32q…: %d bytes, at most %d", ErrInvalidType, name, len(name), maxTypeBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q: it is not UTF-8", ErrInvalidType, name)
	}
	for _, c := range name {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%w: %q: %q does not print", ErrInvalidType, name, c)
		}
	}
	return nil
}

// BeforeEnqueue adds a hook: a function that sees each task of [Enqueue], [EnqueueMany] and
// [TaskType.Enqueue] before any SQL is sent, with the ctx of the call. It is for trace context, the
// tenant and checks. Give it to [NewTaskType] with the other defaults of an app, or to a call.
//
// The task is a copy, with the payload as it was given. A hook may append to its Options, as
// [AddHeaders], and set its Payload; it must not change the value that a pointer in the payload
// leads to. Hooks run in the order of the options, each on the task as the one before left it. An
// error of a hook, or its panic as a handlers.PanicError, is returned wrapped, and nothing is
// enqueued. A hook that changes the Type, adds a hook or takes one away is refused with
// ErrInvalidOption, as is a nil hook.
//
// A hook must be safe for concurrent use and return soon. It is called in a goroutine of its own,
// which the call waits for. Hooks also run for a relay.Schedule with such options, in the
// transaction that fires it, with the values of the context of Start, Run or RunOnce. An error there is that
// of the firing, which is tried again each minute, and is in the log.
//
// No hook runs for [TaskSpec.Encode], handlers.RunAgainWith, a redrive, schedules that operators
// store, the copies of forward.Fanout (their tasks have been enqueued once), and `outbox enqueue`.
func BeforeEnqueue(hook func(ctx context.Context, task *TaskSpec) error) Option {
	return option(func(s *settings) { s.hooks = append(s.hooks, hook) })
}

// runHooks calls the hooks of a task, and returns the task as they leave it.
func runHooks(ctx context.Context, t TaskSpec, s *settings) (TaskSpec, *settings, error) {
	if _, is := t.Payload.(copied.Task[Task[json.RawMessage]]); is {
		return t, s, nil
	}
	spec := t
	spec.Options = slices.Clone(t.Options)
	for _, hook := range s.hooks {
		var err error
		if broken := guard.Call(func() { err = hook(ctx, &spec) }); broken != nil {
			err = broken
		}
		if err != nil {
			return t, s, &codec.HookError{Type: t.Type, Err: err}
		}
	}
	if spec.Type != t.Type {
		return t, s, fmt.Errorf("%w: BeforeEnqueue of %s: it changed the type to %.32q: enqueue another task instead",
			ErrInvalidOption, t.Type, spec.Type)
	}
	after, err := newSettings(spec.Options)
	if err != nil {
		return t, s, fmt.Errorf("outbox: BeforeEnqueue of %s: the options that it left: %w", t.Type, err)
	}
	if len(after.hooks) != len(s.hooks) || s.codecs != nil && after.codecs == nil {
		return t, s, fmt.Errorf("%w: BeforeEnqueue of %s: it added a hook, or took options away: "+
			"append other options to those that are there", ErrInvalidOption, t.Type)
	}
	return spec, after, nil
}

// PayloadCodec encodes payloads for the database, and decodes them: encryption or compression. It is
// safe for concurrent use.
//
// The texts of its errors, and of its panics, are stored and logged like those of a handler: they
// must not quote a payload or a key.
type PayloadCodec interface {
	// Name is stored with each payload, and never changes: it names the method and the key, as
	// aes-gcm-2026-05. It has 1 to 64 bytes of UTF-8 that print, and is no secret.
	Name() string
	// Encode returns what is stored for the payload's JSON. It changes and keeps no byte of plain.
	Encode(plain []byte) ([]byte, error)
	// Decode returns the JSON that Encode got.
	Decode(stored []byte) ([]byte, error)
}

// Codec stores payloads as write encodes them: as a JSON string of base64, with the codec's name in
// the header outbox-codec, which does not count for the limit of [Headers]. Handlers, their
// middleware, package outboxtest and published events have the plain payload, and not that header.
// Each codec also decodes what it has encoded: name former codecs as read, so that keys are rotated.
// A task without the header, as of the time before its type had a codec, is read as it is.
//
// Give it to [NewTaskType], so that the handlers of the type know it. A later Codec replaces an
// earlier one. A nil codec, two codecs of one name and an invalid name are ErrInvalidOption.
//
// A handler's task whose codec is not given, or that its codec refuses, has failed an attempt, with
// an error that names the codec; of a batch it alone. Apply the schema's functions of this version
// (schema.Migrate) and deploy relays that know a codec before the apps that write with it.
//
//   - [MaxPayload] is for the plain payload. What is stored may have 16 MiB, else it is
//     ErrPayloadTooLarge. An error or a panic of Encode is ErrInvalidPayload.
//   - The key of [UniquePayload] is that of the plain payload, a SHA-256, which can confirm a guess. Use
//     [Unique] with another key there.
//   - Types, headers, keys, errors, progress and results of tasks are stored as they are.
//   - handlers.RunAgainWith encodes by the codec of the task, which keeps its headers.
//   - Copies of forward.Fanout are encoded by the codec of their source's type, or by that of
//     forward.TaskOptions. Events are published plain.
//   - A relay.Schedule with the option encodes its tasks. Schedules that operators store and
//     `outbox enqueue` know no codec: their tasks are stored as they are, and read as they are.
//   - SQL, filters and searches by payload, and the command line see the stored string.
func Codec(write PayloadCodec, read ...PayloadCodec) Option {
	all := []codec.Codec{write}
	for _, c := range read {
		all = append(all, c)
	}
	set, err := codec.New(all...)
	return option(func(s *settings) { s.codecs, s.codecFault = set, err })
}

// checkHooks refuses what BeforeEnqueue and Codec were given.
func (s *settings) checkHooks() error {
	if s.codecFault != nil {
		return fmt.Errorf("%w: Codec: %w", ErrInvalidOption, s.codecFault)
	}
	for _, hook := range s.hooks {
		if hook == nil {
			return fmt.Errorf("%w: BeforeEnqueue(nil): give it a function, or leave it out", ErrInvalidOption)
		}
	}
	return nil
}

func init() {
	settingsOf := func(options any) *settings {
		s := &settings{}
		for _, o := range options.([]Option) {
			if o != nil {
				o.apply(s)
			}
		}
		return s
	}
	codec.Of = func(options any) *codec.Set { return settingsOf(options).codecs }
	codec.HasHook = func(options any) bool { return len(settingsOf(options).hooks) > 0 }
	codec.Plain = option(func(s *settings) { s.codecs, s.hooks = nil, nil })
	codec.Option = func(set *codec.Set) any { return option(func(s *settings) { s.codecs = set }) }
}
