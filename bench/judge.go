package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/txoutbox/outbox/bench/measure"
)

// The outcomes of a target.
const (
	outcomePass    = "pass"
	outcomeFail    = "FAIL"
	outcomeExcused = "below, as is the raw limit"
	outcomeUnknown = "not measured"
)

// verdict is what became of a target.
type verdict struct {
	target
	Got     measure.Summary
	RawGot  float64 // the raw limit's own
	Outcome string
}

// unit of Got: x for a ratio.
func (v verdict) unit() string {
	if len(v.Than) > 0 {
		return "x"
	}
	return ""
}

// judge holds the samples against the targets.
func judge(s *measure.Samples, targets []target) []verdict {
	var out []verdict
	for _, t := range targets {
		out = append(out, t.judge(s))
	}
	return out
}

// requireAll makes a target that was not measured a missed one, where everything was to be.
func requireAll(verdicts []verdict) {
	for i, v := range verdicts {
		if v.Outcome == outcomeUnknown {
			verdicts[i].Outcome = outcomeFail
		}
	}
}

func (t target) judge(s *measure.Samples) verdict {
	v := verdict{target: t, Outcome: outcomeUnknown}
	if v.Got = t.got(s, t.Sides); v.Got.N == 0 {
		return v
	}
	switch v.Outcome = outcomePass; {
	case t.holds(v.Got.Median):
		return v
	case len(t.Raw) > 0:
		if limit := t.got(s, t.Raw); limit.N > 0 && !t.holds(limit.Median) {
			v.RawGot, v.Outcome = limit.Median, outcomeExcused
			return v
		}
	}
	v.Outcome = outcomeFail
	return v
}

func (t target) holds(value float64) bool {
	if t.Op == atMost {
		return value <= t.Bound
	}
	return value >= t.Bound
}

// got is what the best of the sides reaches.
func (t target) got(s *measure.Samples, sides []string) measure.Summary {
	side := t.best(s, t.Case, t.Metric, sides)
	if len(t.Than) == 0 {
		return s.Of(t.Case, side, t.Metric)
	}
	in, of := t.In, t.Of
	if in == "" {
		in = t.Case
	}
	if of == "" {
		of = t.Metric
	}
	return measure.Ratio(s.Rounds(t.Case, side, t.Metric), s.Rounds(in, t.best(s, in, of, t.Than), of))
}

// best is the side with the best median: the highest where more is better.
func (t target) best(s *measure.Samples, caseName, metric string, sides []string) (best string) {
	var value float64
	for _, side := range sides {
		m := s.Of(caseName, side, metric)
		if m.N == 0 {
			continue
		}
		if best == "" || (m.Median > value) == (t.Op == atLeast) {
			best, value = side, m.Median
		}
	}
	return best
}

// sentence says a verdict in one line.
func (v verdict) sentence() string {
	unit := v.unit()
	bound := fmt.Sprintf("%s %s%s", v.Op, trimmed(v.Bound), unit)
	switch {
	case v.Got.N == 0:
		return bound + ": not measured in this run"
	case v.Outcome == outcomeExcused:
		return fmt.Sprintf("%s, %s: the raw limit itself reaches %s%s", cellWith(v.Got, unit), bound, number(v.RawGot), unit)
	}
	return fmt.Sprintf("%s, %s", cellWith(v.Got, unit), bound)
}

// trimmed writes a bound as it was given.
func trimmed(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func printVerdicts(w io.Writer, verdicts []verdict) {
	short := map[string]string{outcomePass: "pass", outcomeFail: "FAIL", outcomeExcused: "raw"}
	fmt.Fprintln(w, "targets:")
	for _, v := range verdicts {
		if v.Outcome != outcomeUnknown {
			fmt.Fprintf(w, "  %-5s %s: %s\n", short[v.Outcome], v.What, v.sentence())
		}
	}
}
