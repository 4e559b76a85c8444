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
	"strings"
	"unicode"
)

// The kinds of JSON that are made of others. All others are leaves.
const (
	object = "object"
	array  = "array"
	dict   = "map"
)

// Some names of leaves.
const (
	anything = "any"  // an interface: it takes any JSON, and numbers become float64
	raw      = "JSON" // json.RawMessage: it takes any JSON
	base64   = "base64"
	quoted   = " in a string" // ends the name of a value in a string
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
	kind     string // object, array or dict; "" is a leaf
	name     string // like string, array[2] or map[int64]
	opaque   bool   // the type encodes itself: its JSON is only known by its name
	elem     *Shape // of an array or a dict
	fields   []*field
	named    map[string]*field
	required uint64 // the bits of the required fields
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
	err   error                   // the first
}

func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

func (b *builder) of(t reflect.Type) *Shape {
	switch s := b.known[t]; {
	case s != nil:
		return s
	case t == reflect.TypeFor[json.RawMessage]():
		return &Shape{name: raw}
	case t == reflect.TypeFor[json.Number]():
		return &Shape{name: "number"}
	case t.Kind() == reflect.Interface && t.NumMethod() == 0:
		return &Shape{name: anything}
	case t.Kind() == reflect.Interface: // nothing but null decodes into it
		return &Shape{name: nameOf(t)}
	case implements[json.Unmarshaler](t) || implements[encoding.TextUnmarshaler](t):
		return &Shape{name: nameOf(t)}
	case t.Kind() == reflect.Pointer:
		b.known[t] = b.of(t.Elem())
	default:
		b.known[t] = &Shape{name: t.Kind().String()}
		b.make(b.known[t], t)
	}
	s := b.known[t]
	if encodesItself(t) {
		s.name, s.opaque = nameOf(t), true
	}
	return s
}

// make fills in the shape of a type that encoding/json decodes by its kind.
func (b *builder) make(s *Shape, t reflect.Type) {
	switch t.Kind() {
	case reflect.Struct:
		s.kind, s.name, s.named = object, object, map[string]*field{}
		b.fill(s, t)
	case reflect.Slice, reflect.Array:
		switch elem := t.Elem(); {
		case t.Kind() == reflect.Array:
			s.name = fmt.Sprintf("%s[%d]", array, t.Len())
		case elem.Kind() == reflect.Uint8 && !encodesItself(elem):
			s.name = base64
			return
		default:
			s.name = array
		}
		s.kind, s.elem = array, b.of(t.Elem())
	case reflect.Map:
		if key := b.of(t.Key()).name; key != "string" {
			s.name = dict + "[" + key + "]"
		}
		s.kind, s.elem = dict, b.of(t.Elem())
	case reflect.Int:
		s.name = "int64"
	case reflect.Uint, reflect.Uintptr:
		s.name = "uint64"
	}
}

// fill adds the fields that encoding/json decodes, sorted by name. Of those with one name the least
// deep one counts, then the one whose tag says the name; if there are several, none.
func (b *builder) fill(s *Shape, t reflect.Type) {
	all := b.candidates(t, nil, false)
	slices.SortFunc(all, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.name, y.name), cmp.Compare(x.rank, y.rank))
	})
	for i, c := range all {
		if i > 0 && all[i-1].name == c.name {
			continue
		}
		if i+1 < len(all) && all[i+1].name == c.name && all[i+1].rank == c.rank {
			continue
		}
		f := &field{name: c.name, fold: []byte(c.name), of: b.of(c.field.Type)}
		if c.quoted {
			f.of = &Shape{name: f.of.name + quoted}
		}
		if c.unsettable {
			f.of = &Shape{name: f.of.name + " in an embedded pointer to an unexported struct"}
		}
		switch text := c.field.Tag.Get(tag); {
		case text == "":
		case text != required:
			b.fail("field %s of %v has the tag %s:%q: there is only %q", c.field.Name, t, tag, text, required)
		case c.omitted:
			b.fail("field %s of %v is required and omitted if it is empty or zero: it can be only one of these",
				c.field.Name, t)
		case s.required == 1<<maxRequired-1:
			b.fail("%v has more than %d required fields", t, maxRequired)
		default:
			f.bit = s.required + 1
			s.required |= f.bit
		}
		s.fields, s.named[f.name] = append(s.fields, f), f
	}
}

// candidate is a field of a struct, or of an embedded struct, with the options of its json tag.
type candidate struct {
	field   reflect.StructField
	name    string
	rank    int  // the less the more it counts
	quoted  bool // its value is in a string
	omitted bool // if it is empty or zero
	// An error of encoding/json: it is in an embedded pointer to an unexported struct.
	unsettable bool
}

// candidates are the fields of a struct, which is embedded in those above, and of those embedded.
func (b *builder) candidates(t reflect.Type, above []reflect.Type, unsettable bool) (all []candidate) {
	if slices.Contains(above, t) {
		return nil
	}
	above = append(slices.Clip(above), t)
	for i := range t.NumField() {
		f := t.Field(i)
		of := f.Type
		if of.Kind() == reflect.Pointer && of.Name() == "" {
			of = of.Elem()
		}
		text := f.Tag.Get("json")
		name, options, _ := strings.Cut(text, ",")
		if !validName(name) {
			name = ""
		}
		embedded := f.Anonymous && of.Kind() == reflect.Struct
		decoded := text != "-" && (f.IsExported() || embedded)
		unsettable := unsettable || !f.IsExported() && f.Type.Kind() == reflect.Pointer
		if decoded && (name != "" || !embedded) {
			c := candidate{field: f, name: name, rank: 2 * len(above), unsettable: unsettable}
			if name == "" {
				c.name, c.rank = f.Name, c.rank+1
			}
			for option := range strings.SplitSeq(options, ",") {
				c.quoted = c.quoted || option == "string" && quotable(of.Kind())
				c.omitted = c.omitted || option == "omitempty" || option == "omitzero"
			}
			all = append(all, c)
			continue
		}
		if f.Tag.Get(tag) != "" {
			b.fail("field %s of %v is required, and no field of the JSON", f.Name, t)
		}
		if decoded {
			all = append(all, b.candidates(of, above, unsettable)...)
		}
	}
	return all
}

// quotable reports whether the option string of a json tag has an effect.
func quotable(k reflect.Kind) bool {
	return reflect.Bool <= k && k <= reflect.Float64 || k == reflect.String
}

// validName reports whether encoding/json takes the name of a tag.
func validName(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

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

// Checks reports whether there is an object in it, which may lack fields or have unknown ones.
func (s *Shape) Checks() bool {
	for seen := map[*Shape]bool{}; s.kind != object; s = s.elem {
		if s.elem == nil || seen[s] {
			return false
		}
		seen[s] = true
	}
	return true
}

// field is the one that encoding/json decodes a name into, or nil.
func (s *Shape) field(name []byte) *field {
	if f := s.named[string(name)]; f != nil {
		return f
	}
	i := slices.IndexFunc(s.fields, func(f *field) bool { return bytes.EqualFold(f.fold, name) })
	if i < 0 {
		return nil
	}
	return s.fields[i]
}
