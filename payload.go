package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of jsonb beyond the grammar of JSON. The nesting is a tenth of the limit of encoding/json
// and of the default max_stack_depth of 2 MB.
const (
	maxDepth    = 1000
	maxBefore   = 131072    // digits of a numeric before the decimal point
	maxAfter    = 16383     // and after it
	maxExponent = 1<<30 - 2 // as written, even after 0
)

// marshalError is an error of encoding/json or of a Marshaler. Its text names types alone, as
// theirs may quote the payload; the cause is there for errors.Is and errors.As.
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

// check returns the size of s, which is JSON, with each number at the length in which jsonb writes
// it. If PostgreSQL refuses s, it returns the fault and its byte.
func check(s string) (size int64, at int, fault string) {
	size = int64(len(s))
	depth, inString := 0, false
	for i := 0; i < len(s); {
		n := 1
		switch b := s[i]; {
		case b == '"':
			inString = !inString
		case inString && b == '\\':
			n, fault = escape(s[i:])
		case inString && b >= utf8.RuneSelf:
			var r rune
			if r, n = utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && n == 1 {
				fault = "invalid UTF-8"
			}
		case inString:
		case b == '-' || '0' <= b && b <= '9':
			n = len(s) - i - len(strings.TrimLeft(s[i:], "+-.eE0123456789"))
			written, ok := writtenOut(s[i : i+n])
			if !ok {
				fault = "a number that is out of PostgreSQL's range"
			}
			size += int64(max(0, written-n))
		case b == '{' || b == '[':
			if depth++; depth > maxDepth {
				fault = fmt.Sprintf("nesting deeper than %d", maxDepth)
			}
		case b == '}' || b == ']':
			depth--
		}
		if fault != "" {
			return 0, i, fault
		}
		i += n
	}
	return size, 0, ""
}

// escape returns the length of the escape that s begins with. Both halves of a surrogate pair are
// one.
func escape(s string) (length int, fault string) {
	if s[1] != 'u' {
		return 2, ""
	}
	switch r := codeUnit(s); {
	case r == 0:
		return 0, `\u0000, a NUL, which jsonb cannot hold,`
	case !utf16.IsSurrogate(r):
		return 6, ""
	case utf16.DecodeRune(r, codeUnit(s[6:])) == utf8.RuneError:
		return 0, "half a surrogate pair"
	}
	return 12, ""
}

// codeUnit is the code unit of the \u escape that s begins with, or -1.
func codeUnit(s string) rune {
	if !strings.HasPrefix(s, `\u`) {
		return -1
	}
	u, _ := strconv.ParseUint(s[2:6], 16, 16)
	return rune(u)
}

// writtenOut is the length of a number as jsonb writes it, without an exponent but with the scale
// it came with: 1.50e1 is 15.0 and -0e-3 is 0.000. It is not ok if the number does not fit a
// numeric.
func writtenOut(number string) (length int, ok bool) {
	exponent := 0
	if e := strings.IndexAny(number, "eE"); e >= 0 {
		var err error
		if exponent, err = strconv.Atoi(number[e+1:]); err != nil || max(exponent, -exponent) > maxExponent {
			return 0, false
		}
		number = number[:e]
	}
	whole, fraction, _ := strings.Cut(number, ".")
	whole, negative := strings.CutPrefix(whole, "-")
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

// PostgreSQL drops the connection at a message of 1 GiB. Writing an array doubles each quote and
// backslash.
const maxStatement = 256 << 20

// lines are the payloads of one call in one text, each followed by a line feed, which no JSON
// needs. So many of them travel without quoting and without a buffer for each.
type lines struct {
	text    strings.Builder
	encoder *json.Encoder
}

// add adds a payload, and returns it as JSON that PostgreSQL can cast to jsonb: at most limit
// bytes, both as it is and with its numbers written out.
func (l *lines) add(payload any, limit int) (string, error) {
	if raw, ok := payload.(json.RawMessage); ok {
		if len(raw) <= limit && !json.Valid(raw) {
			return "", notJSON(raw)
		}
		s := string(raw)
		if err := checkPayload(s, limit); err != nil {
			return "", err
		}
		return l.raw(s), nil
	}
	if l.encoder == nil {
		l.encoder = json.NewEncoder(&l.text)
		l.encoder.SetEscapeHTML(false) // jsonb would undo it
	}
	start := l.text.Len()
	if err := l.encoder.Encode(payload); err != nil {
		return "", &marshalError{payload: reflect.TypeOf(payload), err: err}
	}
	s := l.text.String()[start : l.text.Len()-1] // without Encode's line feed
	return s, checkPayload(s, limit)
}

// raw adds JSON, whose line feeds are between tokens.
func (l *lines) raw(s string) string {
	l.text.WriteString(strings.ReplaceAll(s, "\n", " "))
	l.text.WriteByte('\n')
	return s
}

func checkPayload(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrPayloadTooLarge, len(s), limit)
	}
	size, at, fault := check(s)
	if fault != "" {
		return fmt.Errorf("%w: %s at byte %d", ErrInvalidPayload, fault, at)
	}
	if size > int64(limit) {
		return fmt.Errorf("%w: %d bytes with its numbers written out, at most %d", ErrPayloadTooLarge, size, limit)
	}
	return nil
}

// notJSON says where raw stops being JSON. The error of encoding/json would quote it.
func notJSON(raw json.RawMessage) error {
	at := int64(len(raw))
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, new(json.RawMessage)); errors.As(err, &syntax) {
		at = syntax.Offset
	}
	return fmt.Errorf("%w: not JSON near byte %d", ErrInvalidPayload, at)
}
