package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// overviewData is what the first page shows.
type overviewData struct {
	Sum         admin.Type
	Rate        rate
	Range, Over string
	Charts      []chart
	Types       []typeRow
	Relays      []relayRow
}

// typeRow is a line of the table of types.
type typeRow struct {
	admin.Type
	Rate  rate
	Spark chart
	Stuck bool // there is work, and no relay that has a handler for it
}

// sparklines and rates are shown for this many types at most: each is one more statement, at most
// every 15 s.
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
	d := overviewData{Sum: s.sum(), Range: name, Over: over, Relays: relayRows(s)}
	all := history(samples[""], d.Sum, s.at)
	d.Rate, d.Charts = rateOf(all), charts(all, span, over)
	for _, t := range s.types {
		h := history(samples[t.Type], t, s.at)
		r := typeRow{Type: t, Rate: rateOf(h), Stuck: t.Relays == 0 && t.Ready+t.Scheduled+t.Leased+t.Waiting > 0}
		r.Spark = draw(chart{Title: "Ready", Over: over, Tone: "plain"}, counts(h, readyOf), s.at, span)
		d.Types = append(d.Types, r)
	}
	v.Live = true
	return v.show(http.StatusOK, "overview.html", "Overview", d)
}

// relayRow is a relay with what it runs.
type relayRow struct {
	admin.Relay
	Runs []runRow
	More int // runs that are not listed
}

// runRow are the runs of one type.
type runRow struct {
	Type   string
	Runs   int
	Tasks  int
	Oldest time.Time
	Task   int64 // of the one that has run for the longest time
	Lost   bool
}

func relayRows(s *snapshot) (out []relayRow) {
	for _, r := range s.relays {
		row := relayRow{Relay: r}
		by := map[string]*runRow{}
		for _, run := range r.Runs {
			g := by[run.Type]
			if g == nil {
				g = &runRow{Type: run.Type}
				by[run.Type] = g
			}
			g.Runs++
			g.Tasks += len(run.TaskIDs)
			g.Lost = g.Lost || run.Lost
			if g.Oldest.IsZero() || run.StartedAt.Before(g.Oldest) {
				g.Oldest = run.StartedAt
				if len(run.TaskIDs) > 0 {
					g.Task = run.TaskIDs[0]
				}
			}
		}
		for _, g := range by {
			row.Runs = append(row.Runs, *g)
		}
		slices.SortFunc(row.Runs, func(a, b runRow) int { return cmp.Or(cmp.Compare(b.Runs, a.Runs), cmp.Compare(a.Type, b.Type)) })
		if len(row.Runs) > 20 {
			row.Runs, row.More = row.Runs[:20], len(row.Runs)-20
		}
		out = append(out, row)
	}
	return out
}
