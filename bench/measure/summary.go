package measure

import "slices"

// Summary is the median, the least and the most of N values. With N = 0 the rest means nothing.
type Summary struct {
	Median, Min, Max float64
	N                int
}

// Summarize sums values up.
func Summarize(values []float64) Summary {
	if len(values) == 0 {
		return Summary{}
	}
	return Summary{Median: Median(values), Min: slices.Min(values), Max: slices.Max(values), N: len(values)}
}

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Quantile is the smallest value that at least the share q of the values does not exceed; 0 of
// none.
func Quantile(values []float64, q float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(q * float64(n))
	if float64(rank) < q*float64(n) {
		rank++
	}
	return sorted[min(max(rank, 1), n)-1]
}

// Ratio compares two sides round by round, as what happens to the machine happens to both sides of
// a round: a / b for each round that both have.
func Ratio(a, b map[int]float64) Summary {
	var ratios []float64
	for round, v := range a {
		if w := b[round]; w != 0 {
			ratios = append(ratios, v/w)
		}
	}
	return Summarize(ratios)
}
