package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
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

// tableOf has a row for each of the values.
func tableOf[T any](columns string, values []T, row func(T) (any, []any)) *table {
	t := newTable(columns)
	for _, v := range values {
		value, cells := row(v)
		t.add(value, cells...)
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
