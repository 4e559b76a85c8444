package dashboard

import (
	"net/http"

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
			t.Ready+t.Scheduled+t.Leased+t.Waiting > 0}
		r.Spark = draw(chart{Title: "Ready", Over: over, Tone: "plain"}, counts(h, readyOf), s.at, span)
		d.Types = append(d.Types, r)
	}
	v.Live = true
	return v.show(http.StatusOK, "overview.html", "Overview", d)
}
