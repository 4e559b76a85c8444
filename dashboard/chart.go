package dashboard

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/txoutbox/outbox/inspect"
)

// The ranges that charts can show.
var ranges = []struct {
	Name string
	Span time.Duration
	Text string
}{{"1h", time.Hour, "1 hour"}, {"6h", 6 * time.Hour, "6 hours"}, {"24h", 24 * time.Hour, "24 hours"}}

// span is the range that the query asks for.
func (v *view) span() (name string, d time.Duration, text string) {
	for _, r := range ranges {
		if r.Name == v.r.URL.Query().Get("range") {
			return r.Name, r.Span, r.Text
		}
	}
	return ranges[0].Name, ranges[0].Span, ranges[0].Text
}

const samplesAge = 15 * time.Second // a relay takes one a minute

type sampleKey struct {
	taskType string
	span     time.Duration
}

// charts keeps samples, for all viewers.
type charts struct {
	mu   sync.Mutex
	kept map[sampleKey]keptSamples
}

type keptSamples struct {
	at      time.Time
	samples []inspect.Sample
}

// samples are those of the types over the last d, read in one transaction but for those that are known.
func (v *view) samples(d time.Duration, types ...string) (map[string][]inspect.Sample, error) {
	c := &v.h.charts
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]inspect.Sample{}
	var missing []string
	for _, t := range types {
		if k, ok := c.kept[sampleKey{t, d}]; ok && time.Since(k.at) < samplesAge {
			out[t] = k.samples
		} else {
			missing = append(missing, t)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), 2*v.h.config.StatementTimeout)
	defer cancel()
	for key, k := range c.kept {
		if time.Since(k.at) > samplesAge {
			delete(c.kept, key)
		}
	}
	if c.kept == nil {
		c.kept = map[sampleKey]keptSamples{}
	}
	_, err := v.h.read(ctx, v.h.config.StatementTimeout, func(tx *sql.Tx) error {
		for _, t := range missing {
			s, err := inspect.Samples(ctx, tx, t, d, inspect.Schema(v.h.config.Schema))
			if err != nil {
				return err
			}
			c.kept[sampleKey{t, d}] = keptSamples{time.Now(), s}
			out[t] = s
		}
		return nil
	})
	return out, err
}

// chart is a small chart: one line over time, with the area below it.
type chart struct {
	ID, Title  string
	Line, Area string // of an SVG path
	Max, Last  float64
	Over       string
	Unit       string
	Tone       string // a class
	Empty      bool
}

// The size of a chart in its own units; it is stretched to its place.
const (
	chartWidth  = 240
	chartHeight = 48
	chartPoints = 240
)

type point struct {
	at    time.Time
	value float64
}

// counts are the points of what a sample counts, and the count now.
func counts(samples []inspect.Sample, of func(inspect.Sample) int64, now time.Time, current int64) (out []point) {
	for _, s := range samples {
		out = append(out, point{s.At, float64(of(s))})
	}
	return append(out, point{now, float64(current)})
}

// perMinute are the points of what a total grew by in a minute.
func perMinute(samples []inspect.Sample, of func(inspect.Sample) int64, now time.Time, current int64) (out []point) {
	totals := counts(samples, of, now, current)
	for i, p := range totals {
		if i == 0 {
			continue
		}
		d := p.at.Sub(totals[i-1].at)
		if i == len(totals)-1 && d < 20*time.Second && len(out) > 0 {
			continue // too short for a rate
		}
		if d > 0 && d < maxGap {
			out = append(out, point{p.at, max(p.value-totals[i-1].value, 0) / d.Minutes()})
		}
	}
	return out
}

const maxGap = 10 * time.Minute // no relay was there to take samples: the line has a gap

// draw makes a chart of the points in the time from now - span to now.
func draw(c chart, points []point, now time.Time, span time.Duration) chart {
	points = thin(points, now, span)
	for _, p := range points {
		c.Max = max(c.Max, p.value)
	}
	if c.Empty = len(points) < 2; len(points) > 0 {
		c.Last = points[len(points)-1].value
	}
	if c.Empty {
		return c
	}
	top := max(c.Max, 1)
	x := func(p point) float64 { return chartWidth * (1 - float64(now.Sub(p.at))/float64(span)) }
	var line, area strings.Builder
	begin := 0
	for i, p := range points {
		y := chartHeight - 1 - (chartHeight-3)*p.value/top
		step := "L"
		if i == begin {
			step = "M"
			fmt.Fprintf(&area, "M%s %d", coordinate(x(p)), chartHeight)
		}
		line.WriteString(step + coordinate(x(p)) + " " + coordinate(y))
		area.WriteString("L" + coordinate(x(p)) + " " + coordinate(y))
		if i+1 == len(points) || points[i+1].at.Sub(p.at) > max(maxGap, span/30) {
			fmt.Fprintf(&area, "L%s %dZ", coordinate(x(p)), chartHeight)
			begin = i + 1
		}
	}
	c.Line, c.Area = line.String(), area.String()
	return c
}

func coordinate(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// thin takes the greatest of the points that would be drawn over each other.
func thin(points []point, now time.Time, span time.Duration) (out []point) {
	slot := -1
	for _, p := range points {
		age := now.Sub(p.at)
		if age > span || age < 0 {
			continue
		}
		if at := int(chartPoints * (1 - float64(age)/float64(span))); at == slot {
			if p.value > out[len(out)-1].value {
				out[len(out)-1].value = p.value
			}
			out[len(out)-1].at = p.at
			continue
		} else {
			slot = at
		}
		out = append(out, p)
	}
	return out
}

func readyOf(s inspect.Sample) int64    { return s.Ready }
func deadOf(s inspect.Sample) int64     { return s.Dead }
func finishedOf(s inspect.Sample) int64 { return s.Finished }
func failedOf(s inspect.Sample) int64   { return s.Failed }

// charts4 are the charts of a type, or of all.
func charts4(samples []inspect.Sample, now time.Time, span time.Duration, over string, t inspect.Type) []chart {
	return []chart{
		draw(chart{ID: "chart-finished", Title: "Finished", Unit: "a minute", Over: over, Tone: "good"}, perMinute(samples, finishedOf, now, t.Finished), now, span),
		draw(chart{ID: "chart-failed", Title: "Failed runs", Unit: "a minute", Over: over, Tone: "bad"}, perMinute(samples, failedOf, now, t.Failed), now, span),
		draw(chart{ID: "chart-ready", Title: "Ready", Over: over, Tone: "plain"}, counts(samples, readyOf, now, t.Ready), now, span),
		draw(chart{ID: "chart-dead", Title: "Dead letters", Over: over, Tone: "bad"}, counts(samples, deadOf, now, t.Dead), now, span),
	}
}
