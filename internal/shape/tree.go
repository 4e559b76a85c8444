package shape

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Tree is a shape as JSON: how outboxtest.Golden writes it down.
type Tree struct {
	Kind     string          `json:"kind"`
	Required bool            `json:"required,omitempty"`
	Fields   map[string]Tree `json:"fields,omitempty"` // of an object
	Of       *Tree           `json:"of,omitempty"`     // the elements of an array or a map
}

// Tree is the shape with all that it is made of. A shape within itself is written once.
func (s *Shape) Tree() Tree { return s.tree(root, map[*Shape]string{}) }

func (s *Shape) tree(path string, above map[*Shape]string) Tree {
	if s.opaque || s.kind == "" {
		return Tree{Kind: s.name}
	}
	if at, ok := above[s]; ok {
		return Tree{Kind: "as " + at}
	}
	above[s] = path
	defer delete(above, s)
	t := Tree{Kind: s.name}
	if s.kind != object {
		elem := s.elem.tree(below(path, elements(s.kind)), above)
		t.Of = &elem
		return t
	}
	t.Fields = make(map[string]Tree, len(s.fields))
	for _, f := range s.fields {
		one := f.of.tree(below(path, step(f.name)), above)
		one.Required = f.bit != 0
		t.Fields[f.name] = one
	}
	return t
}

// root is the path of a payload itself.
const root = "."

// elements is the step of a path to the elements of an array or a map.
func elements(kind string) string {
	if kind == dict {
		return "*"
	}
	return "[]"
}

// step is that of a path to a field.
func step(name string) string {
	if strings.ContainsAny(name, ".[]* ") {
		return strconv.Quote(name)
	}
	return name
}

func below(path, step string) string {
	switch {
	case path == root:
		return step
	case step == "[]":
		return path + step
	}
	return path + "." + step
}

// Breaks returns the values that payloads of the type before lose, and the failures, if the type
// after decodes them. Types that are not known to be safe break. A field that is new and not
// required breaks nothing.
func Breaks(before, after Tree) []string {
	var b breaks
	b.compare(root, before, after)
	return b.faults
}

type breaks struct{ faults []string }

func (b *breaks) add(format string, args ...any) {
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

func (b *breaks) compare(path string, was, is Tree) {
	if is.Required && !was.Required {
		b.add("%s is required now: stored tasks may lack it", path)
	}
	switch {
	case is.Kind == raw:
	case is.Kind == anything && !exactAsAny(was):
		b.add("%s was %s and is any: numbers of stored tasks may lose digits; json.RawMessage holds them", path, was.Kind)
	case is.Kind == anything:
	case !fits(was.Kind, is.Kind):
		b.add("%s was %s and is %s: stored tasks may not decode", path, was.Kind, is.Kind)
	case was.Of != nil && is.Of != nil:
		of, _ := unbound(was.Kind)
		b.compare(below(path, elements(of)), *was.Of, *is.Of)
	default:
		b.fields(path, was.Fields, is.Fields)
	}
}

// fields compares the fields of an object.
func (b *breaks) fields(path string, was, is map[string]Tree) {
	from := map[string]string{} // the old name of a field, by the new one
	for _, name := range slices.Sorted(maps.Keys(was)) {
		at := below(path, step(name))
		now := decodedBy(name, is)
		switch {
		case len(now) == 0:
			b.add("%s (%s) is gone: its value in stored tasks is lost", at, was[name].Kind)
		case len(now) > 1:
			b.add("%s (%s) may be any of the fields %s: its value in stored tasks may be lost", at, was[name].Kind,
				strings.Join(now, ", "))
		case from[now[0]] != "":
			b.add("%s and %s are one field now: a value in stored tasks is lost", at, from[now[0]])
		default:
			from[now[0]] = at
			b.compare(at, was[name], is[now[0]])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if from[name] == "" && is[name].Required {
			b.add("%s is new and required: stored tasks lack it", below(path, step(name)))
		}
	}
}

// decodedBy are the names of the fields into which encoding/json may decode a name: the one with
// the same case, or those with another.
func decodedBy(name string, fields map[string]Tree) (names []string) {
	if _, ok := fields[name]; ok {
		return []string{name}
	}
	for _, one := range slices.Sorted(maps.Keys(fields)) {
		if strings.EqualFold(one, name) {
			names = append(names, one)
		}
	}
	return names
}

// exactAsAny reports whether an interface holds every value of a type: its numbers are float64.
func exactAsAny(t Tree) bool {
	of, _ := unbound(t.Kind)
	switch {
	case of == object:
		for _, field := range t.Fields {
			if !exactAsAny(field) {
				return false
			}
		}
		return true
	case of == array || of == dict:
		return t.Of != nil && exactAsAny(*t.Of)
	case t.Kind == "string", t.Kind == "bool", t.Kind == base64, t.Kind == anything, strings.HasSuffix(t.Kind, quoted):
		return true
	}
	return widens(t.Kind, "float64")
}

// fits reports whether a type takes every value of another.
func fits(was, is string) bool {
	if was == is {
		return true
	}
	of, wasBounds := unbound(was)
	now, bounds := unbound(is)
	switch {
	case of != now:
		return is == "number" && widens(was, was) || widens(was, is)
	case bounds == "":
		return true
	case of == array:
		from, err := strconv.Atoi(wasBounds)
		to, err2 := strconv.Atoi(bounds)
		return err == nil && err2 == nil && from <= to
	case of == dict:
		return fits(cmp.Or(wasBounds, "string"), bounds)
	}
	return false
}

// widens reports whether a type of numbers holds each number of another.
func widens(was, is string) bool {
	from, known := numbers[was]
	to := numbers[is]
	return known && from.negative <= to.negative && from.positive <= to.positive &&
		(to.fractions || !from.fractions)
}

// numbers are the types of numbers: how many bits the integers have that each holds one after the
// other, and whether it holds fractions.
var numbers = map[string]struct {
	negative, positive int
	fractions          bool
}{
	"int8": {7, 7, false}, "int16": {15, 15, false}, "int32": {31, 31, false}, "int64": {63, 63, false},
	"uint8": {0, 8, false}, "uint16": {0, 16, false}, "uint32": {0, 32, false}, "uint64": {0, 64, false},
	"float32": {24, 24, true}, "float64": {53, 53, true},
}

// unbound splits the kind of an array or a dict, as in array[2] and map[int64].
func unbound(kind string) (of, bounds string) {
	of, bounds, ok := strings.Cut(strings.TrimSuffix(kind, "]"), "[")
	if ok && (of == array || of == dict) {
		return of, bounds
	}
	return kind, ""
}
