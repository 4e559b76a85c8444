package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// overviewData is the first page.
type overviewData struct {
	Sum         admin.Type
	Rate        rate
	Range, Over string
	Charts      []chart
	Types       []typeRow
	Relays      []admin.Relay
}

// typeRow is a line of the table of types.
type typeRow struct {
	admin.Type
	Rate  rate
	Spark chart
	Stuck bool // there are tasks, and no living relay has a handler for them
}

// sparklines is the most types with a sparkline and a rate: each is a statement, at most every 15 s.
const sparklines = 60

func (v *view) overview() error {
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	name, span, over := v.span()
	names := []string{""}
	for _, t := range s.types[:min(len(s.types), sparklines)] {
		names = append(names, t.Type)
	}
	samples, err := v.readSamples(span, names...)
	if err != nil {
		return err
	}
	d := overviewData{Sum: taskview.Sum(s.types), Range: name, Over: over, Relays: s.relays}
	all := history(samples[""], d.Sum, s.at)
	d.Rate = rateOf(all)
	d.Charts = charts(all, d.Rate, span, over)
	for _, t := range s.types {
		h := history(samples[t.Type], t, s.at)
		r := typeRow{Type: t, Rate: rateOf(h), Stuck: t.Relays == 0 &&
			t.Ready+t.Scheduled+t.Retrying+t.Leased+t.Waiting > 0}
		r.Spark = draw(chart{Title: "Ready", Over: over, Tone: "plain"}, counts(h, readyOf), s.at, span)
		d.Types = append(d.Types, r)
	}
	v.Live = true
	return v.show(http.StatusOK, "overview.html", "Overview", d)
}

const pageSize = 50

// typeData is the page of a type.
type typeData struct {
	admin.Type
	Known       bool
	Rate        rate
	Charts      []chart
	Range, Over string
	States      []stateTab
	State       admin.State
	First       bool
	Filter      filter       // of the state
	Groups      []errorGroup // of retrying tasks, on their first page
	admin.TaskPage
}

// stateTab leads to the tasks in one state.
type stateTab struct {
	State   admin.State
	Count   int64
	Counted bool
}

// Link is an address of this page with one value changed.
func (d typeData) Link(key, value string) string {
	q := url.Values{"name": {d.Type.Type}, "state": {string(d.State)}}
	if d.Range != ranges[0].Name {
		q.Set("range", d.Range)
	}
	if q.Set(key, value); key == "after" && value == "" {
		q.Del(key)
	}
	return "./type?" + q.Encode()
}

func (v *view) taskType() error {
	q := v.r.URL.Query()
	d := typeData{State: admin.State(q.Get("state")), First: q.Get("after") == ""}
	name := q.Get("name")
	if name == "" {
		return errNotFound
	}
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	d.Type, d.Known = s.typeNamed(name)
	d.Type.Type = name
	for _, state := range taskview.States {
		d.States = append(d.States, stateTab{state, countIn(d.Type, state), state != admin.StateFinished})
	}
	if d.State == "" {
		d.State = admin.StateReady
		if d.Finished > 0 { // if none are left
			d.State = admin.StateFinished
		}
		for _, t := range d.States { // the first that has any
			if t.Count > 0 {
				d.State = t.State
				break
			}
		}
	}
	if !slices.ContainsFunc(d.States, func(t stateTab) bool { return t.State == d.State }) {
		return badRequest("There is no such state of a task.")
	}
	var span time.Duration
	d.Range, span, d.Over = v.span()
	samples, err := v.readSamples(span, name)
	if err != nil {
		return err
	}
	h := history(samples[name], d.Type, s.at)
	d.Rate = rateOf(h)
	d.Charts = charts(h, d.Rate, span, d.Over)
	d.Filter = filter{List: otherTasks, By: admin.Filter{Type: name, State: d.State}}
	err = v.read(func(ctx context.Context, c *admin.Client) (err error) {
		tasks := admin.TaskQuery{Filter: d.Filter.By, After: q.Get("after"), Limit: pageSize}
		d.TaskPage, err = c.Tasks(ctx, tasks)
		if err == nil && d.First && d.State == admin.StateRetrying {
			d.Groups, err = d.Filter.errors(ctx, c)
		}
		return err
	})
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "type.html", visible(name), d)
}

func (v *view) schedules() error {
	all, err := get(v, (*admin.Client).Schedules)
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "schedules.html", "Schedules", struct{ Schedules []admin.Schedule }{all})
}

func (v *view) relays() error {
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "relays.html", "Relays", struct{ Relays []admin.Relay }{s.relays})
}

func (v *view) audit() error {
	after := v.r.URL.Query().Get("after")
	page, err := get(v, func(c *admin.Client, ctx context.Context) (admin.AuditPage, error) {
		return c.Audit(ctx, admin.AuditQuery{After: after, Limit: pageSize})
	})
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "audit.html", "Audit log", struct {
		admin.AuditPage
		First bool
	}{page, after == ""})
}

// chart is a small chart: one line over time, with the area below it.
type chart struct {
	Title      string
	Line, Area string // of an SVG path
	Values     string // of the line's points
	Now        time.Time
	Span       time.Duration // of the chart, which ends at Now
	Max        float64
	Over       string
	Unit       string
	Current    string // the value of now
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

// history is the samples of a type, and one of now.
func history(samples []admin.Sample, t admin.Type, now time.Time) []admin.Sample {
	return append(slices.Clip(samples),
		admin.Sample{At: now, Ready: t.Ready, Dead: t.Dead, Finished: t.Finished, Failed: t.Failed})
}

// counts are the points of a count.
func counts(history []admin.Sample, of func(admin.Sample) int64) (out []point) {
	for _, s := range history {
		out = append(out, point{s.At, float64(of(s))})
	}
	return out
}

// perMinute are the points of the growth of a total in a minute.
func perMinute(history []admin.Sample, of func(admin.Sample) int64) (out []point) {
	for i, s := range history[1:] {
		if d := s.At.Sub(history[i].At); d >= minGap && d < maxGap {
			out = append(out, point{s.At, float64(max(of(s)-of(history[i]), 0)) / d.Minutes()})
		}
	}
	return out
}

// rate has the finished tasks and failed runs of a minute, lately.
type rate struct {
	Finished, Failed float64
	Known            bool
}

// text is a number of r with its unit, or – if the rate is unknown.
func (r rate) text(perMinute float64) string {
	if !r.Known {
		return "–"
	}
	return decimal(perMinute) + "/min"
}

func (r rate) FinishedText() string { return r.text(r.Finished) }
func (r rate) FailedText() string   { return r.text(r.Failed) }

// rateOf is the rate since the latest sample that is old enough, if it is not too old.
func rateOf(history []admin.Sample) rate {
	now := history[len(history)-1]
	for _, s := range slices.Backward(history) {
		if d := now.At.Sub(s.At); d >= minGap && d <= maxAge {
			return rate{float64(max(now.Finished-s.Finished, 0)) / d.Minutes(),
				float64(max(now.Failed-s.Failed, 0)) / d.Minutes(), true}
		}
	}
	return rate{}
}

const (
	minGap = 20 * time.Second // the least time of a rate
	maxAge = 3 * time.Minute  // the greatest time of a present rate
	maxGap = 10 * time.Minute // the greatest time between samples for a rate
)

// draw makes a chart of the points in the time from now - span to now.
func draw(c chart, points []point, now time.Time, span time.Duration) chart {
	points = thin(points, now, span)
	if c.Empty = len(points) < 2; c.Empty {
		return c
	}
	for _, p := range points {
		c.Max = max(c.Max, p.value)
	}
	c.Now, c.Span = now, span
	var places, values []string
	x := func(p point) string {
		return strconv.FormatFloat(chartWidth*(1-float64(now.Sub(p.at))/float64(span)), 'f', 1, 64)
	}
	for _, p := range points {
		y := chartHeight - 1 - (chartHeight-3)*p.value/max(c.Max, 1)
		places = append(places, x(p)+" "+strconv.FormatFloat(y, 'f', 1, 64))
		values = append(values, decimal(p.value))
	}
	c.Line, c.Values = "M"+strings.Join(places, "L"), strings.Join(values, " ")
	c.Area = fmt.Sprintf("M%s %dL%sL%s %[2]dZ", x(points[0]), chartHeight, strings.Join(places, "L"),
		x(points[len(points)-1]))
	return c
}

// thin keeps the greatest of the points that are at one place of the chart, and the last one.
func thin(points []point, now time.Time, span time.Duration) (out []point) {
	for i, p := range points {
		last := len(out) - 1
		switch age := now.Sub(p.at); {
		case age > span || age < 0:
		case last >= 0 && i < len(points)-1 && p.at.Sub(out[last].at) < span/chartPoints:
			out[last].value = max(out[last].value, p.value)
		default:
			out = append(out, p)
		}
	}
	return out
}

func readyOf(s admin.Sample) int64    { return s.Ready }
func deadOf(s admin.Sample) int64     { return s.Dead }
func finishedOf(s admin.Sample) int64 { return s.Finished }
func failedOf(s admin.Sample) int64   { return s.Failed }

// charts are those of a type, or of all types.
func charts(history []admin.Sample, r rate, span time.Duration, over string) []chart {
	last := history[len(history)-1]
	now := last.At
	return []chart{
		draw(chart{Title: "Finished", Current: r.FinishedText(), Unit: "/min", Over: over, Tone: "good"},
			perMinute(history, finishedOf), now, span),
		draw(chart{Title: "Failed runs", Current: r.FailedText(), Unit: "/min", Over: over, Tone: "bad"},
			perMinute(history, failedOf), now, span),
		draw(chart{Title: "Ready", Current: number(last.Ready), Over: over, Tone: "plain"}, counts(history, readyOf),
			now, span),
		draw(chart{Title: "Dead letters", Current: number(last.Dead), Over: over, Tone: "bad"}, counts(history, deadOf),
			now, span),
	}
}

// span is the range that the query asks for.
func (v *view) span() (name string, d time.Duration, text string) {
	for _, r := range ranges {
		if r.Name == v.r.URL.Query().Get("range") {
			return r.Name, r.Span, r.Text
		}
	}
	return ranges[0].Name, ranges[0].Span, ranges[0].Text
}
