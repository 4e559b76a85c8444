package outbox_test

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
)

// normalised is the model of what jsonb makes of a document: the keys by length and then by bytes, the
// last of equal ones, no escapes that are not needed, numbers without exponents and at their scale.
func normalised(t testing.TB, document string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	var b strings.Builder
	normalise(t, d, &b)
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("%q: got %v after the document, want its end", document, err)
	}
	return b.String()
}

func normalise(t testing.TB, d *json.Decoder, b *strings.Builder) {
	token, err := d.Token()
	if err != nil {
		t.Fatal(err)
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '[' {
			b.WriteByte('[')
			for i := 0; d.More(); i++ {
				if i > 0 {
					b.WriteString(", ")
				}
				normalise(t, d, b)
			}
			b.WriteByte(']')
		} else {
			members := map[string]string{}
			for d.More() {
				key, err := d.Token()
				if err != nil {
					t.Fatal(err)
				}
				var value strings.Builder
				normalise(t, d, &value)
				members[key.(string)] = value.String()
			}
			b.WriteByte('{')
			for i, key := range slices.SortedFunc(maps.Keys(members), func(x, y string) int {
				return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y))
			}) {
				if i > 0 {
					b.WriteString(", ")
				}
				quote(b, key)
				b.WriteString(": " + members[key])
			}
			b.WriteByte('}')
		}
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
	case string:
		quote(b, v)
	case json.Number:
		b.WriteString(decimal(string(v)))
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v)
	}
}

func quote(b *strings.Builder, s string) {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}
	b.WriteByte('"')
	for _, r := range s {
		switch e, ok := short[r]; {
		case ok:
			b.WriteString(e)
		case r < ' ':
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// decimal writes a JSON number out, by arithmetic.
func decimal(number string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	_, fraction, _ := strings.Cut(mantissa, ".")
	scale := len(fraction)
	if exponent != "" {
		e, ok := new(big.Int).SetString(exponent, 10)
		if !ok {
			panic(number)
		}
		scale = max(0, scale-int(e.Int64()))
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		panic(number)
	}
	if r.Sign() == 0 {
		r.SetInt64(0)
	}
	return r.FloatString(scale)
}

// documents generates JSON texts, with every freedom that the grammar leaves to a writer.
func documents() *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n", "\t\r "})
	number := rapid.Custom(func(t *rapid.T) string {
		s := rapid.SampledFrom([]string{"", "-"}).Draw(t, "sign")
		s += rapid.OneOf(rapid.Just("0"), rapid.StringMatching(`[1-9][0-9]{0,20}`)).Draw(t, "whole")
		s += rapid.OneOf(rapid.Just(""), rapid.StringMatching(`\.[0-9]{1,12}`), rapid.StringMatching(`\.0{0,9}[0-9]`)).Draw(t, "fraction")
		s += rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[eE][+-]?0{0,3}[0-9]{1,2}`), rapid.SampledFrom([]string{"e400", "E-400"})).Draw(t, "exponent")
		return s
	})
	text := rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteByte('"')
		for _, r := range rapid.OneOf(rapid.SampledFrom([]string{"", "a", "b", "ab", "ü"}), rapid.StringN(0, 12, -1)).Draw(t, "text") {
			if r == 0 {
				r = 'x'
			}
			escape := rapid.IntRange(0, 3).Draw(t, "escape")
			plain := r >= ' ' && r != '"' && r != '\\'
			i := strings.IndexRune("\"\\/\b\f\n\r\t", r)
			switch {
			case plain && escape < 2:
				b.WriteRune(r)
			case i >= 0 && escape != 3:
				b.WriteString(`\` + string(`"\/bfnrt`[i]))
			default:
				format := []string{`\u%04x`, `\u%04X`}[escape%2]
				for _, unit := range utf16.Encode([]rune{r}) {
					fmt.Fprintf(&b, format, unit)
				}
			}
		}
		b.WriteByte('"')
		return b.String()
	})
	scalar := rapid.OneOf(number, text, rapid.SampledFrom([]string{"null", "true", "false"}))
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		if depth == 0 {
			return scalar
		}
		return rapid.Custom(func(t *rapid.T) string {
			kind := rapid.IntRange(0, 3).Draw(t, "kind")
			if kind < 2 {
				return scalar.Draw(t, "scalar")
			}
			var parts []string
			for range rapid.IntRange(0, 4).Draw(t, "members") {
				part := space.Draw(t, "") + value(depth-1).Draw(t, "member") + space.Draw(t, "")
				if kind == 3 {
					part = space.Draw(t, "") + text.Draw(t, "key") + space.Draw(t, "") + ":" + part
				}
				parts = append(parts, part)
			}
			inside := strings.Join(parts, ",")
			if len(parts) == 0 {
				inside = space.Draw(t, "")
			}
			return []string{"[", "{"}[kind-2] + inside + []string{"]", "}"}[kind-2]
		})
	}
	return value(4)
}

// F15: the payload read is the payload written, as far as jsonb keeps it.
func TestRandomPayloadsEqualTheModelOfJsonb(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	d := newDatabase(t)
	rapid.Check(t, func(rt *rapid.T) {
		batch := rapid.SliceOfN(documents(), 50, 80).Draw(rt, "documents")
		tasks := make([]outbox.NewTask, len(batch))
		for i, document := range batch {
			tasks[i] = outbox.NewTask{Type: "T", Payload: json.RawMessage(document)}
		}
		tx, err := d.db.Begin()
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := outbox.EnqueueMany(t.Context(), tx, tasks); err != nil {
			rt.Fatal(err)
		}
		for i, s := range rows(t, tx, "T") {
			if want := normalised(t, batch[i]); s.Payload != want {
				rt.Fatalf("%q: got %s, want %s", batch[i], s.Payload, want)
			}
		}
	})
}

// checked holds one document against PostgreSQL: what Enqueue refuses PostgreSQL refuses as well (beyond
// the limits of size and nesting), what it takes PostgreSQL takes, at no more than the size allowed, and
// the transaction is usable in both cases (F22, F23).
func checked(t testing.TB, tx *sql.Tx, document string) {
	t.Helper()
	const limit = 4 << 10
	run := func(statement string) {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatalf("%q: %s: %v", document, statement, err)
		}
	}
	run("SAVEPOINT document")
	var size int
	castErr := tx.QueryRow(`SELECT length($1::jsonb::text)`, document).Scan(&size)
	run("ROLLBACK TO document; RELEASE document")

	_, err := outbox.Enqueue(t.Context(), tx, "T", json.RawMessage(document), outbox.MaxPayload(limit))
	if _, aborted := tx.Exec("SELECT 1"); aborted != nil {
		t.Fatalf("%q: got %v, after which the transaction says %v", document, err, aborted)
	}
	switch {
	case err == nil && castErr != nil:
		t.Errorf("%q: enqueued, though PostgreSQL says %v", document, castErr)
	case err == nil:
		if most := limit + strings.Count(document, ",") + strings.Count(document, ":"); size > most {
			t.Errorf("%q: read back %d bytes, want at most %d", document, size, most)
		}
	case errors.Is(err, outbox.ErrPayloadTooLarge):
		if len(document) <= limit && !strings.ContainsAny(document, "eE") {
			t.Errorf("%q: got %v, with no number that grows", document, err)
		}
	case !errors.Is(err, outbox.ErrInvalidPayload):
		t.Errorf("%q: got %v, want ErrInvalidPayload", document, err)
	case castErr == nil && !strings.Contains(err.Error(), "nesting deeper"):
		t.Errorf("%q: got %v, though PostgreSQL takes it", document, err)
	}
}

// mutations are what turns a valid document into one that jsonb refuses, or not.
var mutations = []string{`\u0000`, "\x00", `\ud800`, `\udc00`, `\ud83d\ude00`, "\xff", "\xed\xa0\x80", "ü", "\\", `"`, "{", "[", "}", "]", ",", ":", "1", "0", "-", ".", "e", "e9999", "e131071", "e-16384", " ", "\n", "null", "\ufeff"}

func TestRandomlyDamagedPayloadsNeverBreakTheTransaction(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	rapid.Check(t, func(rt *rapid.T) {
		for range 20 {
			s := documents().Draw(rt, "document")
			for range rapid.IntRange(1, 3).Draw(rt, "faults") {
				at := rapid.IntRange(0, len(s)).Draw(rt, "at")
				until := min(len(s), at+rapid.IntRange(0, 2).Draw(rt, "cut"))
				s = s[:at] + rapid.SampledFrom(mutations).Draw(rt, "mutation") + s[until:]
			}
			checked(t, tx, s)
		}
	})
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}

func FuzzPayload(f *testing.F) {
	for _, c := range refusedPayloads() {
		if raw, ok := c.payload.(json.RawMessage); ok && len(raw) < 8<<10 {
			f.Add([]byte(raw))
		}
	}
	for _, s := range []string{
		`{"bb":1,"a":1,"a":2,"c":-0,"d":1e3}`, `[1.50,-0.0e-3,1E+2,9007199254740993]`, "0e1000000000", "0e1073741822", "0e1073741824", "1e4000",
		`"\ud83d\ude00\u00fc\/\b"`, `{"":{"":[[[]]]}}`, "\"\u2028\ufeff\ufffd\U0010ffff\"", nested("[", "]", 1000), " \t\r\n true \n",
	} {
		f.Add([]byte(s))
	}
	d := newDatabase(f)
	f.Fuzz(func(t *testing.T, document []byte) {
		tx := begin(t, d.db)
		checked(t, tx, string(document))
	})
}
