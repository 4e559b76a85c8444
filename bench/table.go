package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/txoutbox/outbox/bench/measure"
)

// printTable prints the medians of a case.
func (b *bench) printTable(c benchCase) {
	w := tabwriter.NewWriter(b.out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  \t%s\n", strings.Join(c.metrics, "\t"))
	for _, side := range b.samples.Sides(c.name, "") {
		fmt.Fprintf(w, "  %s", side)
		for _, m := range c.metrics {
			fmt.Fprintf(w, "\t%s", cell(b.samples.Of(c.name, side, m)))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
}

// cell is a median with the least and the most.
func cell(s measure.Summary) string { return cellWith(s, "") }

// cellWith writes a unit after the median.
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
