package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// What jsonb takes beyond the grammar of JSON. Nesting is capped at a tenth of what the default
// max_stack_depth of 2 MB allows, and of what encoding/json can decode.
const (
	maxDepth    = 1000
	maxBefore   = 131072    // digits of a numeric before the decimal point
	maxAfter    = 16383     // and after it
	maxExponent = 1<<30 - 2 // as written, even after 0
)

// marshalError is an error of encoding/json or of a Marshaler. Its text names types alone, as theirs
// may quote the payload; the cause is there for errors.Is and errors.As.
type marshalError struct {
	payload reflect.Type
	err     error
}

func (e *marshalError) Unwrap() []error { return []error{ErrInvalidPayload, e.err} }

func (e *marshalError) Error() string {
	var (
		unsupportedType  *json.UnsupportedTypeError
		unsupportedValue *json.UnsupportedValueError
		marshaler        *json.MarshalerError
	)
	what := "encoding/json refuses it"
	switch {
	case errors.As(e.err, &marshaler): // the first, as its cause can be any of the others
		what = fmt.Sprintf("the Marshaler of %v failed", marshaler.Type)
	case errors.As(e.err, &unsupportedType):
		what = fmt.Sprintf("%v has no JSON", unsupportedType.Type)
	case errors.As(e.err, &unsupportedValue) && unsupportedValue.Value.IsValid():
		what = fmt.Sprintf("a %v has a value without JSON", unsupportedValue.Value.Type())
	}
	return fmt.Sprintf("%v: %v: %s", ErrInvalidPayload, e.payload, what)
}

// check reads s once, without allocating. It returns the size of s with each number at the length in
// which jsonb writes it, or what is wrong with s and at which byte.
func check(s string) (size int64, at int, fault string) {
	c := checker{s: s, size: int64(len(s))}
	c.space()
	if c.i == len(s) {
		return 0, c.i, "no JSON value"
	}
	if fault = c.value(0); fault == "" {
		c.space()
		if c.i < len(s) {
			fault = "something after the JSON value"
		}
	}
	return c.size, c.i, fault
}

// checker's methods read one thing of the grammar each and leave i behind it, or return a fault and
// leave i where the fault is.
type checker struct {
	s    string
	i    int
	size int64
}

func (c *checker) space() {
	for c.i < len(c.s) && (c.s[c.i] == ' ' || c.s[c.i] == '\n' || c.s[c.i] == '\t' || c.s[c.i] == '\r') {
		c.i++
	}
}

// peek is the byte at i, or 0, which is never valid where peek is asked.
func (c *checker) peek() byte {
	if c.i < len(c.s) {
		return c.s[c.i]
	}
	return 0
}

func (c *checker) value(depth int) (fault string) {
	switch b := c.peek(); b {
	case '"':
		return c.str()
	case '{':
		return c.members('}', depth)
	case '[':
		return c.members(']', depth)
	case 't':
		return c.word("true")
	case 'f':
		return c.word("false")
	case 'n':
		return c.word("null")
	default:
		if b == '-' || '0' <= b && b <= '9' {
			return c.number()
		}
		return "no JSON value"
	}
}

func (c *checker) word(w string) (fault string) {
	if !strings.HasPrefix(c.s[c.i:], w) {
		return "no JSON value"
	}
	c.i += len(w)
	return ""
}

// members reads an object or array, which depth others surround.
func (c *checker) members(end byte, depth int) (fault string) {
	if depth == maxDepth {
		return "nesting deeper than 1000"
	}
	c.i++
	c.space()
	if c.peek() == end {
		c.i++
		return ""
	}
	for {
		if end == '}' {
			if c.peek() != '"' {
				return "no object key"
			}
			if fault = c.str(); fault != "" {
				return fault
			}
			c.space()
			if c.peek() != ':' {
				return "no colon after an object key"
			}
			c.i++
			c.space()
		}
		if fault = c.value(depth + 1); fault != "" {
			return fault
		}
		c.space()
		switch c.peek() {
		case ',':
			c.i++
			c.space()
		case end:
			c.i++
			return ""
		default:
			return "no comma and no end of the object or array"
		}
	}
}

// str reads a string, as a value or as a key.
func (c *checker) str() (fault string) {
	for c.i++; c.i < len(c.s); {
		switch b := c.s[c.i]; {
		case b == '"':
			c.i++
			return ""
		case b == '\\':
			if fault = c.escape(); fault != "" {
				return fault
			}
		case b < ' ':
			return "a control character in a string"
		case b < utf8.RuneSelf:
			c.i++
		default:
			r, n := utf8.DecodeRuneInString(c.s[c.i:])
			if r == utf8.RuneError && n == 1 {
				return "invalid UTF-8"
			}
			c.i += n
		}
	}
	return "a string without an end"
}

func (c *checker) escape() (fault string) {
	if c.i+1 < len(c.s) {
		switch c.s[c.i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			c.i += 2
			return ""
		}
	}
	switch u := c.unit(c.i); {
	case u < 0:
		return "an invalid escape"
	case u == 0:
		return `\u0000, a NUL, which jsonb cannot hold,`
	case u>>10 == 0xd800>>10: // the first half of a surrogate pair
		if c.unit(c.i+6)>>10 != 0xdc00>>10 {
			return "half a surrogate pair"
		}
		c.i += 12
	case u>>10 == 0xdc00>>10:
		return "half a surrogate pair"
	default:
		c.i += 6
	}
	return ""
}

// unit is the UTF-16 unit of the \uXXXX at i, or -1.
func (c *checker) unit(i int) (u int) {
	if i+6 > len(c.s) || c.s[i] != '\\' || c.s[i+1] != 'u' {
		return -1
	}
	for _, b := range []byte(c.s[i+2 : i+6]) {
		switch {
		case '0' <= b && b <= '9':
			u = u<<4 | int(b-'0')
		case 'a' <= b|0x20 && b|0x20 <= 'f':
			u = u<<4 | int(b|0x20-'a'+10)
		default:
			return -1
		}
	}
	return u
}

// number reads a number and adds to the size what its written-out form takes more.
func (c *checker) number() (fault string) {
	const malformed, outOfRange = "a malformed number", "a number that is out of PostgreSQL's range"
	start, negative := c.i, c.s[c.i] == '-'
	if negative {
		c.i++
	}
	whole := c.digits()
	if whole == "" || len(whole) > 1 && whole[0] == '0' {
		return malformed
	}
	fraction := ""
	if c.peek() == '.' {
		c.i++
		if fraction = c.digits(); fraction == "" {
			return malformed
		}
	}
	exponent := 0
	if c.peek()|0x20 == 'e' {
		c.i++
		sign := c.peek()
		if sign == '+' || sign == '-' {
			c.i++
		}
		digits := c.digits()
		if digits == "" {
			return malformed
		}
		var n int64
		for _, d := range []byte(digits) {
			n = min(n*10+int64(d-'0'), maxExponent+1)
		}
		if n > maxExponent {
			c.i = start
			return outOfRange
		}
		if exponent = int(n); sign == '-' {
			exponent = -exponent
		}
	}
	written, ok := writtenOut(negative, whole, fraction, exponent)
	if !ok {
		c.i = start
		return outOfRange
	}
	c.size += int64(max(0, written-(c.i-start)))
	return ""
}

// writtenOut is the length of a number as jsonb writes it, without an exponent but with the scale it
// came with: 1.50e1 is 15.0 and -0e-3 is 0.000. It is not ok if the number does not fit a numeric.
func writtenOut(negative bool, whole, fraction string, exponent int) (length int, ok bool) {
	before, after := 0, max(0, len(fraction)-exponent) // digits on each side of the point
	zeros := len(fraction) - len(strings.TrimLeft(fraction, "0"))
	switch {
	case whole != "0":
		before = len(whole) + exponent
	case zeros < len(fraction):
		before = exponent - zeros
	default:
		negative = false // zero has no sign
	}
	length = max(1, before)
	if after > 0 {
		length += 1 + after
	}
	if negative {
		length++
	}
	return length, before <= maxBefore && after <= maxAfter
}

func (c *checker) digits() string {
	start := c.i
	for c.i < len(c.s) && '0' <= c.s[c.i] && c.s[c.i] <= '9' {
		c.i++
	}
	return c.s[start:c.i]
}
