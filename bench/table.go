package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/txoutbox/outbox/bench/measure"
)

// table has a row for each side of a case: its name, and its medians.
func table(samples *measure.Samples, c benchCase) (rows [][]string) {
	for _, side := range samples.Sides(c.name) {
		row := []string{side}
		for _, m := range samples.Metrics(c.name) {
			row = append(row, cellWith(samples.Of(c.name, side, m), ""))
		}
		rows = append(rows, row)
	}
	return rows
}

func printTable(out io.Writer, samples *measure.Samples, c benchCase) {
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  \t%s\n", strings.Join(samples.Metrics(c.name), "\t"))
	for _, row := range table(samples, c) {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// cellWith is a median with the least and the most, and a unit after the median.
func cellWith(s measure.Summary, unit string) string {
	switch {
	case s.N == 0:
		return ""
	case s.N == 1 || s.Min == s.Max:
		return number(s.Median) + unit
	}
	return fmt.Sprintf("%s%s (%s to %s)", number(s.Median), unit, number(s.Min), number(s.Max))
}

// number writes three digits, and thousands with commas.
func number(v float64) string {
	switch {
	case v < 0:
		return "-" + number(-v)
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
