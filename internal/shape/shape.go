// Package shape knows from which JSON a Go type decodes, as encoding/json sees it: the names and
// types of its fields, and which of them a payload must have.
package shape

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// The types of JSON that are made of others. All other types are leaves.
const (
	object = "object"
	array  = "array"
	dict   = "map"
)

// The types of leaves that take any JSON.
const (
	anything = "any"  // an interface: numbers become float64
	raw      = "JSON" // json.RawMessage
)

// base64 is the leaf of a []byte, and quoted ends the leaf of a value in a string.
const (
	base64 = "base64"
	quoted = " in a string"
)

// tag is the key of the struct tag that marks a field that a payload must have.
const (
	tag      = "outbox"
	required = "required"
)

// maxRequired bounds the required fields of one struct.
const maxRequired = 64

// Shape is the JSON of a Go type.
type Shape struct {
	kind     string   // object, array, dict, or the name of a leaf
	fields   []*field // of an object, sorted by name
	named    map[string]*field
	required uint64 // the bits of the required ones
	elem     *Shape // of an array or a dict
	opaque   string // the name of a type that only encodes itself: its JSON is not known
	bounds   string // in its tree: the length of an array of Go, or the keys of a dict, if not any text
}

// field is a field of an object.
type field struct {
	name string
	fold []byte // the name, for comparisons without case
	of   *Shape
	bit  uint64 // of a required field
}

// Of is the shape of a type. The error names a field whose tag is wrong.
func Of(t reflect.Type) (*Shape, error) {
	b := builder{known: map[reflect.Type]*Shape{}}
	s := b.of(t)
	return s, b.err
}

// builder makes the shapes of a type and of all that it is made of.
type builder struct {
	known map[reflect.Type]*Shape // also those that are being made: a type may contain itself
	err   error
}

// decodesItself reports whether methods of the type decode it.
func decodesItself(t reflect.Type) bool {
	return implements[json.Unmarshaler](t) || implements[encoding.TextUnmarshaler](t)
}

// encodesItself reports whether methods of the type encode it.
func encodesItself(t reflect.Type) bool {
	return implements[json.Marshaler](t) || implements[encoding.TextMarshaler](t)
}

// implements reports whether a type, or a pointer to it, has the methods of I.
func implements[I any](t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[I]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[I]())
}

// nameOf is the name of a type with its package. The pointer to a type without a name is another
// type: encoding/json finds methods of the pointer through it alone.
func nameOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer && t.Elem().Name() != "" {
		t = t.Elem()
	}
	if t.PkgPath() == "" {
		return t.String()
	}
	return t.PkgPath() + "." + t.Name()
}

func (b *builder) of(t reflect.Type) *Shape {
	if s := b.known[t]; s != nil {
		return s
	}
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return &Shape{kind: raw}
	case t.Kind() == reflect.Interface && t.NumMethod() == 0:
		return &Shape{kind: anything}
	case t.Kind() == reflect.Interface: // nothing but null decodes into it
		return &Shape{kind: nameOf(t)}
	case t == reflect.TypeFor[json.Number]():
		return &Shape{kind: "number"}
	case decodesItself(t):
		return &Shape{kind: nameOf(t)}
	}
	s := b.made(t)
	if encodesItself(t) {
		s.opaque = nameOf(t)
	}
	return s
}

// made is the shape of a type that encoding/json decodes by its kind.
func (b *builder) made(t reflect.Type) *Shape {
	switch t.Kind() {
	case reflect.Pointer:
		return b.of(t.Elem())
	case reflect.Struct:
		s := &Shape{kind: object, named: map[string]*field{}}
		b.known[t] = s
		b.fill(s, t)
		return s
	case reflect.Slice, reflect.Array, reflect.Map:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !encodesItself(t.Elem()) {
			return &Shape{kind: base64}
		}
		s := &Shape{kind: array}
		switch t.Kind() {
		case reflect.Array:
			s.bounds = fmt.Sprintf("[%d]", t.Len())
		case reflect.Map:
			s.kind = dict
			if key := b.of(t.Key()).leaf(); key != reflect.String.String() {
				s.bounds = "[" + key + "]"
			}
		}
		b.known[t] = s
		s.elem = b.of(t.Elem())
		return s
	case reflect.Int:
		return &Shape{kind: "int64"}
	case reflect.Uint, reflect.Uintptr:
		return &Shape{kind: "uint64"}
	}
	return &Shape{kind: t.Kind().String()}
}

// fill adds the fields of a struct, with those of the structs that it embeds.
func (b *builder) fill(s *Shape, t reflect.Type) {
	fields, lost := fieldsOf(t)
	for _, f := range lost {
		b.fail("field %s of %v is required, and no field of the JSON", f.Name, t)
	}
	for _, c := range fields {
		f := &field{name: c.name, fold: []byte(c.name), of: b.of(c.field.Type)}
		if c.quoted {
			f.of = &Shape{kind: f.of.leaf() + quoted}
		}
		if c.unsettable {
			f.of = &Shape{kind: f.of.leaf() + " in an embedded pointer to an unexported struct"}
		}
		switch text := c.field.Tag.Get(tag); {
		case text == "":
		case text != required:
			b.fail("field %s of %v has the tag %s:%q: there is only %q", c.field.Name, t, tag, text, required)
		case c.omitted:
			b.fail("field %s of %v is required and omitted if it is empty or zero: it can be only one of these", c.field.Name, t)
		case s.required == 1<<maxRequired-1:
			b.fail("%v has more than %d required fields", t, maxRequired)
		default:
			f.bit = s.required + 1
			s.required |= f.bit
		}
		s.fields, s.named[f.name] = append(s.fields, f), f
	}
}

// fail keeps the first error.
func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// leaf is the shape in a word.
func (s *Shape) leaf() string { return cmp.Or(s.opaque, s.kind+s.bounds) }

// Checks reports whether there is an object in it, which may lack fields or have unknown ones.
func (s *Shape) Checks() bool {
	seen := map[*Shape]bool{}
	for !seen[s] {
		seen[s] = true
		if s.kind == object {
			return true
		}
		if s.elem == nil {
			return false
		}
		s = s.elem
	}
	return false
}

// field is the one that encoding/json decodes a name into, or nil.
func (s *Shape) field(name []byte) *field {
	if f := s.named[string(name)]; f != nil {
		return f
	}
	if i := slices.IndexFunc(s.fields, func(f *field) bool { return bytes.EqualFold(f.fold, name) }); i >= 0 {
		return s.fields[i]
	}
	return nil
}
