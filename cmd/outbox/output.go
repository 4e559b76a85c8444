package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// output prints what a command found: for people, or as JSON.
type output struct {
	w    io.Writer
	json bool
	now  func() time.Time
}

// print writes v as JSON, or calls people.
func (o *output) print(v any, people func() error) error {
	if !o.json {
		return people()
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := o.w.Write(cleanJSON(b.Bytes()))
	return err
}

// say writes a line for people.
func (o *output) say(format string, args ...any) error {
	_, err := fmt.Fprintln(o.w, clean(fmt.Sprintf(format, args...)))
	return err
}

// table is aligned text. Each cell is made fit for a terminal when it is added.
type table struct {
	right []bool // columns of numbers
	rows  [][]string
}

// newTable has the given columns; those whose names begin with > have numbers.
func newTable(columns ...string) *table {
	t := &table{}
	head := []string{}
	for _, c := range columns {
		name, right := strings.CutPrefix(c, ">")
		t.right = append(t.right, right)
		head = append(head, name)
	}
	t.rows = [][]string{head}
	return t
}

// add adds a row. Empty cells are printed as -.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if row[i] = clean(fmt.Sprint(c)); row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// lines are the rows, as text without what would be blank at their ends.
func (t *table) lines() []string {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	out := make([]string, len(t.rows))
	for n, row := range t.rows {
		var b strings.Builder
		for i, c := range row {
			blank := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i > 0 {
				b.WriteString("  ")
			}
			if t.right[i] {
				b.WriteString(blank + c)
			} else {
				b.WriteString(c + blank)
			}
		}
		out[n] = strings.TrimRight(b.String(), " ")
	}
	return out
}

func (o *output) table(t *table) error {
	_, err := io.WriteString(o.w, strings.Join(t.lines(), "\n")+"\n")
	return err
}

// fields are the names and values of one thing, line by line.
type fields [][2]string

func (f *fields) add(name string, value any) {
	if text := fmt.Sprint(value); text != "" {
		*f = append(*f, [2]string{name, text})
	}
}

// print writes the fields; lines after the first of a value that has several are indented.
func (o *output) fields(f fields) error {
	width := 0
	for _, field := range f {
		width = max(width, len(field[0]))
	}
	var b strings.Builder
	for _, field := range f {
		for i, line := range strings.Split(strings.TrimRight(field[1], "\n"), "\n") {
			name := field[0]
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(&b, "%-*s  %s\n", width, name, clean(line))
		}
	}
	_, err := io.WriteString(o.w, b.String())
	return err
}

// when is a time in the local zone with its distance from now; "" for the zero time.
func (o *output) when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	text := t.Local().Format("2006-01-02 15:04:05 MST")
	if d := o.now().Sub(t); d >= 0 {
		return text + " (" + age(d) + " ago)"
	}
	return text + " (in " + age(t.Sub(o.now())) + ")"
}

// local is a time in the local zone, for tables; "" for the zero time.
func local(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// since is how long ago a time was; "" for the zero time.
func (o *output) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return age(o.now().Sub(t))
}

// stamp is a time in JSON: RFC 3339 in UTC, null for the zero time.
type stamp struct{ time.Time }

func (s stamp) MarshalJSON() ([]byte, error) {
	if s.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + s.UTC().Format("2006-01-02T15:04:05.000000Z") + `"`), nil
}

// seconds is a duration in JSON.
func seconds(d time.Duration) float64 { return d.Seconds() }

// list is never null in JSON.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
