package shape

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// root is the path of a payload itself in its lines.
const root = "."

// Line is a field of a shape: how outboxtest.Golden writes it down.
type Line struct {
	Path     string
	Kind     string
	Required bool
}

func (l Line) String() string {
	text := l.Path + "\t" + l.Kind
	if l.Required {
		text += "\t" + required
	}
	return text
}

// Parse reads the lines of a text. Lines that begin with # are comments.
func Parse(text string) (lines []Line, err error) {
	for i, one := range strings.Split(text, "\n") {
		one = strings.TrimSuffix(one, "\r")
		if one == "" || one[0] == '#' {
			continue
		}
		parts := strings.Split(one, "\t")
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != required {
			return nil, fmt.Errorf("line %d is not a path, a type, and %q or nothing, with tabs between them", i+1, required)
		}
		lines = append(lines, Line{Path: parts[0], Kind: parts[1], Required: len(parts) == 3})
	}
	return lines, nil
}

// Lines are the payload, its fields, and their fields, sorted by path.
func (s *Shape) Lines() []Line { return s.lines(nil, root, map[*Shape]string{}) }

// lines appends a shape at a path, and the shapes in it. A shape within itself is written once.
func (s *Shape) lines(to []Line, path string, above map[*Shape]string) []Line {
	if s.kind != object && s.elem == nil {
		return append(to, Line{Path: path, Kind: s.kind})
	}
	if at, ok := above[s]; ok {
		return append(to, Line{Path: path, Kind: "as " + at})
	}
	above[s] = path
	defer delete(above, s)
	to = append(to, Line{Path: path, Kind: s.kind + s.bounds})
	below := path + "."
	if path == root {
		below = ""
	}
	switch s.kind {
	case array:
		return s.elem.lines(to, strings.TrimSuffix(below, ".")+"[]", above)
	case dict:
		return s.elem.lines(to, below+"*", above)
	}
	for _, f := range s.fields {
		at := len(to)
		to = f.of.lines(to, below+f.name, above)
		to[at].Required = f.bit != 0
	}
	return to
}

// Breaks returns the values that payloads of the old lines lose, and the failures, if a type of the new
// lines decodes them. A field that is new and not required breaks nothing.
func Breaks(before, after []Line) (faults []string) {
	was, is := byPath(before), byPath(after)
	told := map[string]bool{} // paths of which all that is below changed as well
	for _, old := range before {
		if below(old.Path, told) {
			continue
		}
		now, ok := is[fold(old.Path)]
		switch {
		case !ok:
			faults = append(faults, fmt.Sprintf("%s (%s) is gone: its value in stored tasks is lost", old.Path, old.Kind))
			told[old.Path] = true
		case now.Kind == anything:
			told[old.Path] = true
		case !fits(old.Kind, now.Kind):
			faults = append(faults, fmt.Sprintf("%s was %s and is %s: stored tasks may not decode", old.Path, old.Kind, now.Kind))
			told[old.Path] = true
		case now.Required && !old.Required:
			faults = append(faults, fmt.Sprintf("%s is required now: stored tasks may lack it", old.Path))
		}
	}
	for _, now := range after {
		_, ok := was[fold(now.Path)]
		_, inOld := was[fold(parent(now.Path))]
		if !ok && now.Required && inOld && !below(now.Path, told) {
			faults = append(faults, fmt.Sprintf("%s is new and required: stored tasks lack it", now.Path))
		}
	}
	return faults
}

func byPath(lines []Line) map[string]Line {
	m := make(map[string]Line, len(lines))
	for _, l := range lines {
		m[fold(l.Path)] = l
	}
	return m
}

// fold is a path as encoding/json compares names: without case.
func fold(path string) string { return strings.ToLower(path) }

// parent is the path of the object, array or map that a path is in.
func parent(path string) string {
	if p, ok := strings.CutSuffix(path, "[]"); ok {
		if p == "" {
			return root
		}
		return p
	}
	if i := strings.LastIndexByte(path, '.'); i > 0 {
		return path[:i]
	}
	return root
}

// below reports whether a path is in one of the others.
func below(path string, others map[string]bool) bool {
	for path != root {
		if path = parent(path); others[path] {
			return true
		}
	}
	return false
}

// fits reports whether a type takes every value of another.
func fits(old, now string) bool {
	if old == now {
		return true
	}
	of, was := unbound(old)
	is, bounds := unbound(now)
	switch {
	case of != is:
	case bounds == "":
		return true
	case is == array:
		return was != "" && number(was) <= number(bounds)
	case is == dict:
		return fits(cmp.Or(was, "string"), bounds)
	}
	from, fromBits := bits(old)
	to, toBits := bits(now)
	switch {
	case from == "" || to == "" && now != "number":
		return false
	case now == "number":
		return true
	case from == to:
		return fromBits <= toBits
	case to == "float":
		return fromBits <= 32 // integers that a float64 holds
	case from == "uint" && to == "int":
		return fromBits < toBits
	}
	return false
}

// unbound splits the kind of an array or a dict, as in array[2] and map[int64].
func unbound(kind string) (of, bounds string) {
	of, bounds, _ = strings.Cut(strings.TrimSuffix(kind, "]"), "[")
	if of == array || of == dict {
		return of, bounds
	}
	return kind, kind
}

// number is that of a line, or -1.
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
