package shape

import (
	"encoding/json"
	"slices"
	"strings"
)

// Bounds of what one check returns, as names and depth come from payloads: the fields, the bytes of a
// name, and the steps of a path.
const (
	maxFindings = 10
	maxName     = 64
	maxPath     = 16
)

// Finding is a field of a payload that its shape does not know, or a required one that it lacks.
type Finding struct {
	Path    string // as in address.zip, items[].sku and prices.*.cents
	Missing bool
}

// Check compares a payload, which is JSON, with the shape. It returns the first fields that are
// unknown, and those that are missing if it is asked for them. It allocates nothing if there are none.
func (s *Shape) Check(payload []byte, missing bool) []Finding {
	c := check{json: payload, missing: missing}
	c.value(s)
	return c.found
}

// check is one Check, at a byte of the payload. For text that is not JSON it may find anything, but it
// ends.
type check struct {
	json    []byte
	missing bool // missing fields are asked for
	at      int
	path    [maxPath]string // from the payload to this byte
	depth   int             // of it, also beyond maxPath
	found   []Finding
}

// next skips spaces and returns the byte after them, or 0 at the end.
func (c *check) next() byte {
	for ; c.at < len(c.json); c.at++ {
		switch b := c.json[c.at]; b {
		case ' ', '\t', '\n', '\r':
		default:
			return b
		}
	}
	return 0
}

// value reads a value.
func (c *check) value(s *Shape) {
	switch b := c.next(); {
	case b == '{' && s.kind == object:
		c.object(s)
	case b == '{' && s.kind == dict:
		c.members(func([]byte) { c.within("*", s.elem) })
	case b == '[' && s.kind == array:
		c.array(s)
	default:
		c.skip()
	}
}

// within reads a value one step down the path.
func (c *check) within(step string, s *Shape) {
	if c.depth < maxPath {
		c.path[c.depth] = step
	}
	c.depth++
	c.value(s)
	c.depth--
}

func (c *check) object(s *Shape) {
	var seen uint64
	c.members(func(name []byte) {
		f := s.field(name)
		if f == nil {
			c.add(string(name[:min(len(name), maxName)]), false)
			c.skip()
			return
		}
		seen |= f.bit
		c.within(f.name, f.of)
	})
	if seen == s.required || !c.missing {
		return
	}
	for _, f := range s.fields {
		if f.bit&^seen != 0 {
			c.add(f.name, true)
		}
	}
}

// members calls value for each member of an object, at its value.
func (c *check) members(value func(name []byte)) {
	for more := true; more; more = c.next() == ',' {
		c.at++ // { or ,
		if c.next() != '"' {
			break
		}
		name := c.text()
		if slices.Contains(name, '\\') {
			name = unescaped(name)
		}
		c.next()
		c.at++ // :
		value(name)
	}
	c.at++ // }
}

// array reads the elements of an array.
func (c *check) array(s *Shape) {
	for more := true; more; more = c.next() == ',' {
		c.at++                 // [ or ,
		c.within("[]", s.elem) // it reads nothing before a ]
	}
	c.at++ // ]
}

// text reads a string, and returns it without its quotes and with its escapes.
func (c *check) text() []byte {
	c.at++ // "
	start := c.at
	for ; c.at < len(c.json); c.at++ {
		switch c.json[c.at] {
		case '\\':
			c.at++
		case '"':
			c.at++
			return c.json[start : c.at-1]
		}
	}
	return nil
}

func unescaped(text []byte) []byte {
	var s string
	_ = json.Unmarshal(slices.Concat([]byte{'"'}, text, []byte{'"'}), &s)
	return []byte(s)
}

// skip reads a value of any shape: up to a comma behind it, or to the end of the object or array.
func (c *check) skip() {
	for depth := 0; c.at < len(c.json); c.at++ {
		switch c.json[c.at] {
		case '"':
			c.text()
			c.at-- // the quote
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return
			}
			depth--
		case ',':
			if depth == 0 {
				return
			}
		}
	}
}

// add notes a field of the object at hand.
func (c *check) add(name string, missing bool) {
	if len(c.found) == maxFindings {
		return
	}
	path := slices.Clone(c.path[:min(c.depth, maxPath)])
	if c.depth > maxPath {
		path = append(path, "…")
	}
	c.found = append(c.found, Finding{Path: join(append(path, name)), Missing: missing})
}

// join writes a path: the elements of an array have no dot before them.
func join(path []string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(strings.Join(path, "."), "\uFFFD"), ".[]", "[]")
}
