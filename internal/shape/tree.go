package shape

import (
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
	if s.opaque != "" || s.kind != object && s.elem == nil {
		return Tree{Kind: s.leaf()}
	}
	if at, ok := above[s]; ok {
		return Tree{Kind: "as " + at}
	}
	above[s] = path
	defer delete(above, s)
	t := Tree{Kind: s.kind + s.bounds}
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
