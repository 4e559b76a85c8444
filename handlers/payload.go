package handlers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/shape"
)

// unmarshal decodes a payload; numbers in an any become json.Number, so none loses digits. Its
// errors name the place and the types, never the value.
func unmarshal(payload json.RawMessage, into any, plain bool) error {
	if plain {
		return decoded(json.Unmarshal(payload, into), payload, into)
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	return decoded(d.Decode(into), payload, into)
}

// unmarshaler does the same for many payloads, one after the other, with one decoder, which saves
// its garbage.
type unmarshaler struct {
	plain bool
	in    bytes.Reader
	json  *json.Decoder
}

func (u *unmarshaler) unmarshal(payload json.RawMessage, into any) error {
	u.in.Reset(payload)
	if u.json == nil {
		if u.json = json.NewDecoder(&u.in); !u.plain {
			u.json.UseNumber()
		}
	}
	before := u.json.InputOffset()
	err := u.json.Decode(into)
	rest := int64(len(payload)) - (u.json.InputOffset() - before)
	if err != nil || rest > 0 {
		u.json = nil // the next one must not begin with what is left
	}
	if rest > 0 && u.plain {
		err = json.Unmarshal(payload, into)
	}
	return decoded(err, payload, into)
}

// decodeAll returns the tasks as they were enqueued, the names of their codecs by id, and why a payload stays as
// it is stored.
func decodeAll(by *codec.Set, stored []*outbox.Task[json.RawMessage]) (
	plain []*outbox.Task[json.RawMessage], codecs map[int64]string, undecoded map[int64]error) {
	plain = stored
	for i, t := range stored {
		headers, name := codec.Without(t.Headers)
		if name == "" {
			continue
		}
		if codecs == nil {
			plain, codecs, undecoded = slices.Clone(stored), map[int64]string{}, map[int64]error{}
		}
		codecs[t.ID] = name
		payload, err := by.Decode(name, t.Payload)
		if err != nil {
			undecoded[t.ID] = fmt.Errorf("handlers: task type %s: %w", t.Type, err)
			continue
		}
		one := *t
		one.Payload, one.Headers = payload, headers
		plain[i] = &one
	}
	return plain, codecs, undecoded
}

// decoded is the error of a payload that was to be decoded into a value.
func decoded(err error, payload json.RawMessage, into any) error {
	if err == nil {
		return nil
	}
	var t *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &t):
		of := reflect.TypeOf(into).Elem()
		if name := misfit(payload, of); name != "" {
			return fmt.Errorf("handlers: the payload does not decode: field %q does not fit %v", name, of)
		}
		return fmt.Errorf("handlers: the payload does not decode into a %T", into)
	case t.Field == "":
		return fmt.Errorf("handlers: the payload does not decode: it does not fit %v", t.Type)
	}
	return fmt.Errorf("handlers: the payload does not decode: field %q does not fit %v", t.Field, t.Type)
}

// misfit is the first field of a payload that does not decode alone, where an error does not name it.
func misfit(payload json.RawMessage, of reflect.Type) string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	var fields map[string]json.RawMessage
	itself := reflect.PointerTo(of).Implements(reflect.TypeFor[json.Unmarshaler]()) // its names may be data
	if itself || of.Kind() != reflect.Struct || json.Unmarshal(payload, &fields) != nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		one, err := json.Marshal(map[string]json.RawMessage{name: fields[name]})
		if err != nil {
			return ""
		}
		d := json.NewDecoder(bytes.NewReader(one))
		d.UseNumber()
		if d.Decode(reflect.New(of).Interface()) != nil {
			return name
		}
	}
	return ""
}

// plain reports whether no value of t can hold an interface, which decides how a number is decoded:
// without one a payload is decoded by json.Unmarshal, which costs less.
func plain(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return true
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return false
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return plain(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if !plain(t.Field(i).Type, seen) {
				return false
			}
		}
	}
	return true
}

// maxWarned bounds the unknown fields of a type that are logged: payloads choose their names.
const maxWarned = 20

// payloads decodes the payloads of one registration.
type payloads struct {
	of     reflect.Type
	plain  bool
	shape  *shape.Shape // nil: it has no fields
	strict bool

	silent atomic.Bool // without strict: maxWarned fields are logged
	mu     sync.Mutex
	warned map[string]bool // by path
}

// newPayloads also returns what is wrong with the tags of the type.
func newPayloads(of reflect.Type) (*payloads, error) {
	p := &payloads{of: of, plain: plain(of, map[reflect.Type]bool{}), warned: map[string]bool{}}
	s, err := shape.Of(of)
	if s.Checks() {
		p.shape = s
	}
	return p, err
}

// check compares a payload that has been decoded with the fields of its type.
func (p *payloads) check(c *Call, t *outbox.Task[json.RawMessage]) error {
	if p.shape == nil || p.silent.Load() {
		return nil
	}
	payload := []byte(t.Payload)
	if p.of.Kind() == reflect.Struct && string(bytes.TrimSpace(payload)) == "null" {
		payload = []byte("{}") // which decodes the same, and lacks the required fields
	}
	found := p.shape.Check(payload, p.strict)
	if len(found) == 0 {
		return nil
	}
	if p.strict {
		return strictError(found)
	}
	for _, f := range found {
		if p.first(f.Path) {
			c.Logger().Warn("outbox: a payload has a field that its Go type does not have; its value is ignored",
				"task_type", c.Type, "field", f.Path, "payload_type", p.of.String(), "task_id", t.ID)
		}
	}
	return nil
}

// first reports whether a field is to be logged: once, and not as one of too many.
func (p *payloads) first(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.warned[path] || len(p.warned) == maxWarned {
		return false
	}
	p.warned[path] = true
	p.silent.Store(len(p.warned) == maxWarned)
	return true
}

// strictError names fields, and no value.
func strictError(found []shape.Finding) error {
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = fmt.Sprintf("unknown field %q", f.Path)
		if f.Missing {
			texts[i] = fmt.Sprintf("required field %q is missing", f.Path)
		}
	}
	return fmt.Errorf("handlers: the payload does not decode: %s", strings.Join(texts, ", "))
}
