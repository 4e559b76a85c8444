package outbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/codec"
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

// encode returns the payload as its codec stores it, and notes the codec and the key of the plain payload.
func (s *settings) encode(plain string) (string, error) {
	name := s.codecs.Writes()
	stored, err := s.codecs.Encode(name, []byte(plain))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	}
	headers := make(map[string]string, len(s.headers)+1)
	maps.Copy(headers, s.headers)
	headers[codec.Header] = name
	s.headers = headers
	s.encodeHeaders()
	if s.unique != nil && s.unique.ofPayload {
		s.unique.key = keyOfPayload(plain)
	}
	return stored, nil
}

// checkStored bounds a payload as its codec stores it.
func checkStored(stored string) error {
	if len(stored) > mostPayload {
		return fmt.Errorf("%w: its codec makes it %d bytes, at most %d", ErrPayloadTooLarge, len(stored), mostPayload)
	}
	return nil
}

// keyOfPayload is the unique key that resolve_key (schema/functions/keys.sql) makes of the payload, which
// [lines.add] has checked.
func keyOfPayload(payload string) string {
	d := json.NewDecoder(strings.NewReader(payload))
	d.UseNumber()
	sum := sha256.Sum256([]byte(canonical(d)))
	return payloadKey + ":" + hex.EncodeToString(sum[:])
}

// canonical is the next value as jsonb prints it, with numbers of no zeros at the end of their fractions. Keys of
// an object are in the order of their lengths, and then of their bytes; of repeated keys the last one counts.
func canonical(d *json.Decoder) string {
	token, _ := d.Token() // the text is valid JSON
	switch value := token.(type) {
	case json.Delim:
		var parts []string
		if value == '[' {
			for d.More() {
				parts = append(parts, canonical(d))
			}
			_, _ = d.Token()
			return "[" + strings.Join(parts, ", ") + "]"
		}
		fields := map[string]string{}
		for d.More() {
			name, _ := d.Token()
			text, _ := name.(string)
			fields[text] = canonical(d)
		}
		_, _ = d.Token()
		for _, name := range slices.SortedFunc(maps.Keys(fields), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
		}) {
			parts = append(parts, quoted(name)+": "+fields[name])
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case string:
		return quoted(value)
	case json.Number:
		return decimal(string(value))
	case bool:
		return strconv.FormatBool(value)
	}
	return "null"
}

// quoted is a string as jsonb prints it: it escapes quotes, backslashes and control characters.
func quoted(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= ' ':
			b.WriteByte(c)
		default:
			const short = "\b\f\n\r\t"
			if at := strings.IndexByte(short, c); at >= 0 {
				b.WriteByte('\\')
				b.WriteByte("bfnrt"[at])
			} else {
				b.WriteString(`\u00`)
				b.WriteString(hex.EncodeToString([]byte{c}))
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// decimal is a number without an exponent, without zeros at the end of its fraction, and without the sign of
// zero. [writtenOut] has found that it fits.
func decimal(number string) string {
	exponent := 0
	if e := strings.IndexAny(number, "eE"); e >= 0 {
		exponent, _ = strconv.Atoi(number[e+1:])
		number = number[:e]
	}
	number, negative := strings.CutPrefix(number, "-")
	whole, fraction, _ := strings.Cut(number, ".")
	point := len(whole) + exponent // its place in the digits
	digits := strings.TrimRight(whole+fraction, "0")
	rest := strings.TrimLeft(digits, "0")
	point -= len(digits) - len(rest)
	digits = rest
	if digits == "" {
		return "0"
	}
	switch {
	case point <= 0:
		digits = "0." + strings.Repeat("0", -point) + digits
	case point >= len(digits):
		digits += strings.Repeat("0", point-len(digits))
	default:
		digits = digits[:point] + "." + digits[point:]
	}
	if negative {
		return "-" + digits
	}
	return digits
}
