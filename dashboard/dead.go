package dashboard

import (
	"context"
	"database/sql"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// deadFilter is what a form says of dead letters.
type deadFilter struct {
	Type, Reason, Error, Older string
}

// The ages that the form offers.
var ages = []struct {
	Name, Text string
	Age        time.Duration
}{{"1h", "1 hour", time.Hour}, {"6h", "6 hours", 6 * time.Hour}, {"24h", "1 day", 24 * time.Hour}, {"168h", "7 days", 168 * time.Hour}, {"720h", "30 days", 720 * time.Hour}}

var reasons = []struct{ Name, Text string }{
	{string(deadletter.Attempts), "all attempts used"},
	{string(deadletter.Handler), "the handler said so"},
	{string(deadletter.LostConnections), "lost connections"},
	{string(deadletter.Committed), "the handler committed"},
}

func reasonText(r string) string {
	for _, known := range reasons {
		if known.Name == r {
			return known.Text
		}
	}
	return visible(r)
}

func deadFilterOf(q url.Values) deadFilter {
	return deadFilter{q.Get("type"), q.Get("reason"), strings.TrimSpace(q.Get("error")), q.Get("older")}
}

func (f deadFilter) query() url.Values {
	q := url.Values{}
	for key, s := range map[string]string{"type": f.Type, "reason": f.Reason, "error": f.Error, "older": f.Older} {
		if s != "" {
			q.Set(key, s)
		}
	}
	return q
}

func (f deadFilter) Any() bool { return f != deadFilter{} }

// Link is an address with the filter in it.
func (f deadFilter) Link(page string, more ...string) string {
	q := f.query()
	for i := 0; i+1 < len(more); i += 2 {
		if more[i+1] != "" {
			q.Set(more[i], more[i+1])
		}
	}
	if len(q) == 0 {
		return "./" + page
	}
	return "./" + page + "?" + q.Encode()
}

func (f deadFilter) age() (time.Duration, error) {
	if f.Older == "" {
		return 0, nil
	}
	for _, a := range ages {
		if a.Name == f.Older {
			return a.Age, nil
		}
	}
	return 0, badRequest("There is no such age in the form.")
}

// filter is what package deadletter takes.
func (f deadFilter) filter() (out deadletter.Filter, err error) {
	if len(f.Error) > 1024 {
		return out, badRequest("The text of the error is longer than 1 kB.")
	}
	out = deadletter.Filter{Type: f.Type, Reason: deadletter.Reason(f.Reason)}
	if f.Error != "" {
		out.Error = deadletter.Containing(f.Error)
	}
	out.OlderThan, err = f.age()
	return out, err
}

// Words are the filter as a person would say it, for a page and for the audit log.
func (f deadFilter) Words() string {
	var parts []string
	if f.Type != "" {
		parts = append(parts, "of type "+visible(f.Type))
	}
	if f.Reason != "" {
		parts = append(parts, "for "+reasonText(f.Reason))
	}
	if f.Error != "" {
		parts = append(parts, "with “"+visible(f.Error)+"” in the error")
	}
	for _, a := range ages {
		if a.Name == f.Older {
			parts = append(parts, "dead for more than "+a.Text)
		}
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
}

// deadData is what the page of dead letters shows.
type deadData struct {
	Filter  deadFilter
	Types   []string
	Total   int64
	Letters []deadletter.Letter
	After   string
	Next    string
	Page    int
	Looked  time.Time // zero: to the end of the page; else how far a search has come
}

func (d deadData) Ages() any    { return ages }
func (d deadData) Reasons() any { return reasons }

func (h *Handler) dead(v *view) error {
	q := v.r.URL.Query()
	d := deadData{Filter: deadFilterOf(q), After: q.Get("after"), Page: pageSize}
	f, err := d.Filter.filter()
	if err != nil {
		return err
	}
	after, err := parseCursor(d.After)
	if err != nil {
		return err
	}
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	for _, t := range s.types {
		if t.Dead > 0 || t.Type == d.Filter.Type {
			d.Types = append(d.Types, t.Type)
		}
		if d.Filter.Type == "" || d.Filter.Type == t.Type {
			d.Total += t.Dead
		}
	}
	p := deadletter.Page{Next: after}
	err = v.read(func(ctx context.Context, tx *sql.Tx) error {
		return search(h.patience, func(look int) (enough bool, err error) {
			found, next, err := deadletter.ListPage(ctx, tx, f, p.Next, pageSize+1-len(d.Letters), look, deadletter.Schema(h.config.Schema))
			if err != nil {
				return false, err
			}
			d.Letters, p = append(d.Letters, found...), next
			return p.Last || len(d.Letters) > pageSize, nil
		})
	})
	if came := p.Next != after; err != nil && !(came && pgerr.Code(err) == tookTooLong) { // else it goes on from there
		return err
	}
	switch {
	case len(d.Letters) > pageSize:
		d.Letters = d.Letters[:pageSize]
		d.Next = cursorText(d.Letters[pageSize-1].Cursor())
	case !p.Last:
		d.Next, d.Looked = cursorText(p.Next), p.Next.DiedAt
	}
	// A reason or a text is looked for by reading: once, when asked.
	v.Template, v.Title, v.Live, v.Data = "dead.html", "Dead letters", d.Filter.Reason == "" && d.Filter.Error == "", d
	if v.Live && v.MayOperate() { // no other row comes under the pointer while it is on a button
		v.Parts, v.Holds = []string{"total", "stale"}, true
		for _, l := range d.Letters {
			v.Shape += strconv.FormatInt(l.TaskID, 10) + " "
		}
		v.Shape = hash(v.Shape + d.Next)
	}
	return v.show(200)
}

// search calls page until it is enough, or the time is over: for few dead letters at a time, as their errors may be long, and for more as long as that takes little of it.
func search(patience time.Duration, page func(look int) (enough bool, err error)) error {
	const least, most = 2000, 20_000
	start := time.Now()
	for look := least; ; {
		began := time.Now()
		enough, err := page(look)
		if err != nil || enough || time.Since(start) > patience {
			return err
		}
		switch took := time.Since(began); {
		case took < patience/8:
			look = min(2*look, most)
		case took > patience/4:
			look = max(look/2, least)
		}
	}
}

func cursorText(c deadletter.Cursor) string {
	return strconv.FormatInt(c.DiedAt.UnixMicro(), 10) + "." + strconv.FormatInt(c.TaskID, 10)
}

func parseCursor(s string) (c deadletter.Cursor, err error) {
	if s == "" {
		return c, nil
	}
	at, id, _ := strings.Cut(s, ".")
	micros, err1 := strconv.ParseInt(at, 10, 64)
	task, err2 := strconv.ParseInt(id, 10, 64)
	if err1 != nil || err2 != nil || micros < -62135596800000000 || micros > 253402300799000000 {
		return c, badRequest("The address names no page of dead letters.")
	}
	return deadletter.Cursor{DiedAt: time.UnixMicro(micros), TaskID: task}, nil
}
