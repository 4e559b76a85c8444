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
