package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/txoutbox/outbox/admin"
)

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
	d.States = []stateTab{{admin.StateReady, d.Ready, true}, {admin.StateScheduled, d.Scheduled, true},
		{admin.StateLeased, d.Leased, true}, {admin.StateWaiting, d.Waiting, true},
		{admin.StateDead, d.Dead, true}, {State: admin.StateFinished}}
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
	rangeName, span, over := v.span()
	d.Range, d.Over = rangeName, over
	samples, err := v.readSamples(span, name)
	if err != nil {
		return err
	}
	h := history(samples[name], d.Type, s.at)
	d.Rate = rateOf(h)
	d.Charts = charts(h, d.Rate, span, over)
	err = v.read(func(ctx context.Context, c *admin.Client) (err error) {
		d.TaskPage, err = c.Tasks(ctx, admin.TaskQuery{Type: name, State: d.State, After: q.Get("after"), Limit: pageSize})
		return err
	})
	if err != nil {
		return err
	}
	v.Live = true
	return v.show(http.StatusOK, "type.html", visible(name), d)
}
