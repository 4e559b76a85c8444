// Package measure holds what a benchmark measured: the progress of a turn, samples of sides that
// took turns, their medians and ratios.
package measure

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Progress counts the tasks of one turn. Its clock starts with the first task that reaches a
// handler, so that connecting and starting up count for no side.
type Progress struct {
	want    int64
	done    atomic.Int64
	slots   [slots]atomic.Int64 // what was done in each slotLength; the last one has all later ones
	first   chan struct{}
	reached chan struct{}
	start   sync.Once
	end     sync.Once
	began   time.Time // set before first is closed
}

const (
	slotLength = 20 * time.Millisecond
	slots      = 20 * 60 * 50 // 20 minutes
)

// NewProgress counts until want tasks are done, and on.
func NewProgress(want int) *Progress {
	return &Progress{want: int64(want), first: make(chan struct{}), reached: make(chan struct{})}
}

// Done counts n tasks more.
func (p *Progress) Done(n int) {
	p.start.Do(func() {
		p.began = time.Now()
		close(p.first)
	})
	p.slots[min(int(time.Since(p.began)/slotLength), slots-1)].Add(int64(n))
	if p.done.Add(int64(n)) >= p.want {
		p.end.Do(func() { close(p.reached) })
	}
}

// First is closed with the first task, Reached with the last that is wanted.
func (p *Progress) First() <-chan struct{}   { return p.first }
func (p *Progress) Reached() <-chan struct{} { return p.reached }

// Elapsed is the time since the first task.
func (p *Progress) Elapsed() time.Duration {
	select {
	case <-p.first:
		return time.Since(p.began)
	default:
		return 0
	}
}

// Windows are the rates, in tasks a second, of each window of the given length, between two moments
// as Elapsed tells them. The last one counts if it is at least a fifth as long as the others, or is
// the only one.
func (p *Progress) Windows(length, from, to time.Duration) []float64 {
	var out []float64
	for ; from < to; from += length {
		end := min(from+length, to)
		if end-from < length/5 && len(out) > 0 {
			break
		}
		out = append(out, (p.until(end)-p.until(from))/(end-from).Seconds())
	}
	return out
}

// until is the count at a moment: of the slot that it is in, a share.
func (p *Progress) until(t time.Duration) (n float64) {
	last := min(int(t/slotLength), slots-1)
	for i := range last {
		n += float64(p.slots[i].Load())
	}
	share := float64(t-time.Duration(last)*slotLength) / float64(slotLength)
	return n + share*float64(p.slots[last].Load())
}

// Samples are all that a run measured.
type Samples struct{ all []sample }

// sample is one number that one side of a case gave in one round.
type sample struct {
	caseName, side, metric string
	round                  int
	value                  float64
}

// Add keeps one number; a round has one.
func (s *Samples) Add(caseName, side, metric string, round int, value float64) {
	s.all = append(s.all, sample{caseName, side, metric, round, value})
}

// Rounds are the values of one metric of one side, by round.
func (s *Samples) Rounds(caseName, side, metric string) map[int]float64 {
	out := map[int]float64{}
	for _, v := range s.all {
		if v.caseName == caseName && v.side == side && v.metric == metric {
			out[v.round] = v.value
		}
	}
	return out
}

// Sides are the sides of a case, in the order in which they first gave a sample.
func (s *Samples) Sides(caseName string) []string {
	return s.distinct(caseName, func(v sample) string { return v.side })
}

// Metrics are those of a case, in the order of their first samples.
func (s *Samples) Metrics(caseName string) []string {
	return s.distinct(caseName, func(v sample) string { return v.metric })
}

func (s *Samples) distinct(caseName string, of func(sample) string) (out []string) {
	for _, v := range s.all {
		if v.caseName == caseName && !slices.Contains(out, of(v)) {
			out = append(out, of(v))
		}
	}
	return out
}

// Of summarizes one metric of one side over its rounds.
func (s *Samples) Of(caseName, side, metric string) Summary {
	return summarize(slices.Collect(maps.Values(s.Rounds(caseName, side, metric))))
}

// Summary is the median, the least and the most of N values. With N = 0 the rest means nothing.
type Summary struct {
	Median, Min, Max float64
	N                int
}

func summarize(values []float64) Summary {
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
	return summarize(ratios)
}
