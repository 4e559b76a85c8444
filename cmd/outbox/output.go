package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// output prints a result: for people, or as JSON.
type output struct {
	w    io.Writer
	json bool
}

// print writes v as JSON, or the lines for people, escaped for a terminal.
func (o *output) print(v any, lines ...string) error {
	var b bytes.Buffer
	if o.json {
		if err := encode(&b, jsonValue(v), "  "); err != nil {
			return err
		}
		_, err := o.w.Write(cleanJSON(b.Bytes()))
		return err
	}
	for _, line := range lines {
		b.WriteString(clean(line) + "\n")
	}
	_, err := o.w.Write(b.Bytes())
	return err
}

// line writes v as JSON on one line.
func (o *output) line(v any) error {
	var b bytes.Buffer
	if err := encode(&b, jsonValue(v), ""); err != nil {
		return err
	}
	_, err := o.w.Write(cleanJSON(b.Bytes()))
	return err
}

// table is a list: its rows in JSON, and as aligned text.
type table struct {
	json  []any
	right []bool // columns of numbers
	rows  [][]string
}

// newTable has the given columns; those whose names begin with > have numbers. A _ is a blank.
func newTable(columns string) *table {
	t := &table{json: []any{}, rows: [][]string{nil}}
	for _, c := range strings.Fields(columns) {
		name, right := strings.CutPrefix(c, ">")
		t.right = append(t.right, right)
		t.rows[0] = append(t.rows[0], strings.ReplaceAll(name, "_", " "))
	}
	return t
}

// tableOf has a row for each of the values: the value in JSON, and its cells.
func tableOf[T any](columns string, values []T, cells func(T) []any) *table {
	t := newTable(columns)
	for _, v := range values {
		t.add(v, cells(v)...)
	}
	return t
}

// add adds a row: a struct or an object for JSON, and its cells. An empty cell is printed as -.
func (t *table) add(v any, cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if row[i] = clean(text(c)); row[i] == "" {
			row[i] = "-"
		}
	}
	t.json = append(t.json, v)
	t.rows = append(t.rows, row)
}

// lines are the rows, without blanks at their ends.
func (t *table) lines() []string {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	out := make([]string, len(t.rows))
	for n, row := range t.rows {
		for i, c := range row {
			if blank := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)); t.right[i] {
				out[n] += blank + c + "  "
			} else {
				out[n] += c + blank + "  "
			}
		}
		out[n] = strings.TrimRight(out[n], " ")
	}
	return out
}

// fields are the names and values of one thing.
type fields [][2]string

// add adds a field, unless its value is empty.
func (f *fields) add(name string, value any) {
	if s := text(value); s != "" {
		*f = append(*f, [2]string{name, s})
	}
}

// lines are the fields; lines of a value after its first are indented.
func (f fields) lines() (out []string) {
	width := 0
	for _, field := range f {
		width = max(width, len(field[0]))
	}
	for _, field := range f {
		name := field[0]
		for line := range strings.SplitSeq(strings.TrimRight(field[1], "\n"), "\n") {
			out = append(out, fmt.Sprintf("%-*s  %s", width, name, line))
			name = ""
		}
	}
	return out
}

// object is a JSON object, with its members in this order.
type object []member

type member struct {
	name  string
	value any
}

// renamed are members whose names differ from the names of their fields.
var renamed = map[string]string{
	"admin.Task.ID": "task_id", "admin.Relay.ID": "relay_id", "admin.AuditEntry.ID": "entry_id",
	"admin.Event.Kind": "event", "admin.Index.Name": "index",
	"admin.Index.BytesBefore": "before_bytes", "admin.Index.BytesAfter": "after_bytes",
}

// objectOf has a member for each field of a struct: RelayID is relay_id, and a time.Duration
// OldestReady is oldest_ready_seconds. The fields of an embedded struct are members too.
func objectOf(v any) (o object) {
	of := reflect.ValueOf(v)
	for i := range of.NumField() {
		field, value := of.Type().Field(i), of.Field(i).Interface()
		if field.Anonymous {
			o = append(o, objectOf(value)...)
			continue
		}
		name := renamed[of.Type().String()+"."+field.Name]
		if name == "" {
			name = strings.ToLower(wordEnd.ReplaceAllString(field.Name, "${1}_${2}"))
		}
		if _, ok := value.(time.Duration); ok {
			name += "_seconds"
		}
		o = append(o, member{name, value})
	}
	return o
}

var wordEnd = regexp.MustCompile(`([a-z])([A-Z])`)

// without leaves members out.
func (o object) without(names ...string) object {
	return slices.DeleteFunc(o, func(m member) bool { return slices.Contains(names, m.name) })
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, "%q:", m.name)
		if err := encode(&b, jsonValue(m.value), ""); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// jsonValue is a value as JSON has it: a time is RFC 3339 in UTC, or null if it is zero; a duration
// is seconds; a struct is an object; a nil pointer is null, and a list never.
func jsonValue(v any) any {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return nil
		}
		return v.UTC().Format("2006-01-02T15:04:05.000000Z")
	case time.Duration:
		return v.Seconds()
	case json.Marshaler, encoding.TextMarshaler:
		return v
	}
	switch of := reflect.ValueOf(v); of.Kind() {
	case reflect.Struct:
		return objectOf(v)
	case reflect.Pointer:
		if of.IsNil() {
			return nil
		}
		return jsonValue(of.Elem().Interface())
	case reflect.Slice:
		list := make([]any, of.Len())
		for i := range list {
			list[i] = jsonValue(of.Index(i).Interface())
		}
		return list
	}
	return v
}

func encode(b *bytes.Buffer, v any, indent string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// clean escapes control characters, and characters that change the direction or the look of other
// text: any enqueuer can write names, errors and payloads. The result is one line.
func clean(s string) string {
	quoted := strconv.Quote(s)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}

// cleanJSON escapes the same in a JSON text, without changing its values.
func cleanJSON(text []byte) (out []byte) {
	for _, r := range string(text) {
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

// cut is the beginning of a text, of n characters at most.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}

// cutError is the first line of an error, of 80 runes at most: the beginning and the end, which has
// the cause.
func cutError(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	line := []rune(first)
	if len(line) <= 80 {
		return first
	}
	return string(line[:29]) + "…" + string(line[len(line)-50:])
}

// text is a value for people: times are in the local zone. A zero time or duration is "".
func text(v any) string {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return v.Local().Format("2006-01-02 15:04:05")
	case time.Duration:
		if v == 0 {
			return ""
		}
		return age(v)
	}
	return fmt.Sprint(v)
}

// since is how long ago a time was; "" for the zero time.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(time.Since(t))
}

// when is a time in the local zone with its distance from now; "" for the zero time.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	said := t.Local().Format("2006-01-02 15:04:05 MST")
	if d := time.Until(t); d > 0 {
		return said + " (in " + age(d) + ")"
	}
	return said + " (" + since(t) + " ago)"
}

// age is a duration for people: 0.4s, 12s, 3m12s, 5h03m, 3d04h.
func age(d time.Duration) string {
	d = max(d, 0)
	switch s := int64(d / time.Second); {
	case d == 0:
		return "0s"
	case s < 1:
		return fmt.Sprintf("0.%ds", max(d/(100*time.Millisecond), 1))
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	default:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
}

// count is a number with its noun: 1 dead letter, 1,234 dead letters.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped is a number for sentences: 1,234.
func grouped[N int | int64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
