package shape

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

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
		return wasBounds != "" && number(wasBounds) <= number(bounds)
	case of == dict:
		return fits(cmp.Or(wasBounds, "string"), bounds)
	}
	return false
}

// widens reports whether a type of numbers holds each number of another.
func widens(was, is string) bool {
	from, fromBits := bits(was)
	to, toBits := bits(is)
	switch {
	case from == "" || to == "":
		return false
	case from == to:
		return fromBits <= toBits
	case to == "float":
		return fromBits < mantissa[toBits]
	}
	return from == "uint" && to == "int" && fromBits < toBits
}

// mantissa has the bits of the integers that a float holds, one after the other.
var mantissa = map[int]int{32: 24, 64: 53}

// unbound splits the kind of an array or a dict, as in array[2] and map[int64].
func unbound(kind string) (of, bounds string) {
	of, bounds, ok := strings.Cut(strings.TrimSuffix(kind, "]"), "[")
	if ok && (of == array || of == dict) {
		return of, bounds
	}
	return kind, ""
}

// number is that of a length, or -1.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// bits splits the name of a number's type.
func bits(kind string) (name string, size int) {
	name = strings.TrimRight(kind, "0123456789")
	size, err := strconv.Atoi(kind[len(name):])
	if err != nil || name != "int" && name != "uint" && name != "float" {
		return "", 0
	}
	return name, size
}
