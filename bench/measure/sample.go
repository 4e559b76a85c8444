// Package measure holds what a benchmark measured: samples of sides that took turns, their medians
// and ratios.
package measure

import "slices"

// Sample is one number that one side of a case gave in one round.
type Sample struct {
	Case, Side, Metric string
	Round              int
	Value              float64
}

// Samples are all that a run measured.
type Samples struct{ all []Sample }

// Add keeps one number.
func (s *Samples) Add(caseName, side, metric string, round int, value float64) {
	s.all = append(s.all, Sample{Case: caseName, Side: side, Metric: metric, Round: round, Value: value})
}

// Rounds are the values of one metric of one side, by round. A round that gave several values has
// their median.
func (s *Samples) Rounds(caseName, side, metric string) map[int]float64 {
	values := map[int][]float64{}
	for _, v := range s.all {
		if v.Case == caseName && v.Side == side && v.Metric == metric {
			values[v.Round] = append(values[v.Round], v.Value)
		}
	}
	out := map[int]float64{}
	for round, v := range values {
		out[round] = Median(v)
	}
	return out
}

// Sides are the sides of a case, in the order in which they first gave a sample.
func (s *Samples) Sides(caseName string) []string {
	return s.distinct(caseName, func(v Sample) string { return v.Side })
}

// Metrics are those of a case, in the order of their first samples.
func (s *Samples) Metrics(caseName string) []string {
	return s.distinct(caseName, func(v Sample) string { return v.Metric })
}

func (s *Samples) distinct(caseName string, of func(Sample) string) (out []string) {
	for _, v := range s.all {
		if v.Case == caseName && !slices.Contains(out, of(v)) {
			out = append(out, of(v))
		}
	}
	return out
}

// Of summarizes one metric of one side over its rounds.
func (s *Samples) Of(caseName, side, metric string) Summary {
	rounds := s.Rounds(caseName, side, metric)
	values := make([]float64, 0, len(rounds))
	for _, v := range rounds {
		values = append(values, v)
	}
	return Summarize(values)
}
