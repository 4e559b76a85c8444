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
}

// print writes v as JSON, or the lines for people, made fit for a terminal.
func (o *output) print(v any, lines ...string) error {
	var b bytes.Buffer
	if o.json {
		if err := encode(&b, v, "  "); err != nil {
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

func encode(b *bytes.Buffer, v any, indent string) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}

// object is an object in JSON, with its members in this order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON writes times as RFC 3339 in UTC, or null for the zero time, and durations in seconds.
// Lists are never null.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, "%q:", m.name)
		switch v := m.value.(type) {
		case time.Time:
			m.value = nil
			if !v.IsZero() {
				m.value = v.UTC().Format("2006-01-02T15:04:05.000000Z")
			}
		case time.Duration:
			m.value = v.Seconds()
		case []int64:
			m.value = append([]int64{}, v...)
		case []string:
			m.value = append([]string{}, v...)
		}
		if err := encode(&b, m.value, ""); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// table is a list: its rows in JSON, and as aligned text.
type table struct {
	json  []object
	right []bool // columns of numbers
	rows  [][]string
}

// newTable has the given columns; those whose names begin with > have numbers.
func newTable(columns ...string) *table {
	t := &table{json: []object{}, rows: [][]string{nil}}
	for _, c := range columns {
		name, right := strings.CutPrefix(c, ">")
		t.right = append(t.right, right)
		t.rows[0] = append(t.rows[0], name)
	}
	return t
}

// add adds a row. Each cell is made fit for a terminal; empty ones are printed as -.
func (t *table) add(o object, cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if row[i] = clean(text(c)); row[i] == "" {
			row[i] = "-"
		}
	}
	t.json = append(t.json, o)
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
