package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// deadData is the page of dead letters.
type deadData struct {
	Filter deadFilter
	Types  []string
	Total  int64
	admin.TaskPage
	First  bool
	Looked time.Time // the place that a search has reached; zero: it filled the page
	Groups []deadGroup
	Match  string // how many pass a filter that searches
}

// deadGroup is a line of the table of errors.
type deadGroup struct {
	admin.DeadGroup
	Link string // to those dead letters
}

// groupOf links to the dead letters whose error has the group's longest text without a number.
func groupOf(g admin.DeadGroup, f deadFilter) deadGroup {
	longest := ""
	for part := range strings.SplitSeq(g.Error, "#") {
		if part = strings.TrimSpace(part); len(part) > len(longest) {
			longest = part
		}
	}
	f.Type, f.Error = g.Type, longest
	return deadGroup{g, f.Link("dead", "", "")}
}

// groups reads the most frequent errors, and the number of matches up to a bound.
func (d *deadData) groups(ctx context.Context, c *admin.Client) error {
	found, err := c.DeadGroups(ctx, admin.DeadQuery{Filter: d.Filter.DeadFilter})
	if err != nil {
		return err
	}
	for _, g := range found {
		d.Groups = append(d.Groups, groupOf(g, d.Filter))
	}
	if !d.Filter.searches() {
		return nil
	}
	n, err := c.CountDeadLetters(ctx, admin.DeadQuery{Filter: d.Filter.DeadFilter, MaxScan: looks})
	if d.Match = number(n.Count); n.Next != "" {
		d.Match += " or more"
	}
	return err
}

func (v *view) dead() error {
	q := v.r.URL.Query()
	f, err := deadFilterOf(q)
	if err != nil {
		return err
	}
	d := deadData{Filter: f, First: q.Get("after") == ""}
	dead := admin.DeadQuery{Filter: f.DeadFilter, After: q.Get("after"), Limit: pageSize, MaxScan: looks}
	s, err := v.snapshot()
	if err != nil {
		return err
	}
	for _, t := range s.types {
		if t.Dead > 0 {
			d.Types = append(d.Types, t.Type)
		}
	}
	d.Total = s.dead(f.Type)
	err = v.read(func(ctx context.Context, c *admin.Client) (err error) {
		d.TaskPage, err = c.DeadLetters(ctx, dead)
		return err
	})
	if err != nil {
		return err
	}
	if d.First && !v.htmx() {
		if err := v.read(d.groups); err != nil && !tooLong(err) { // else the list is worth showing
			return err
		}
	}
	if len(d.Tasks) < pageSize {
		d.Looked = diedAt(d.Next)
	}
	// A search by a field without an index reads many rows, so it runs only when asked. And a list
	// with buttons stays as it is, so that no other row moves under the pointer.
	v.Live = !f.reads() && !v.MayOperate()
	return v.show(http.StatusOK, "dead.html", "Dead letters", d)
}

// looks is the number of dead letters that a search reads for a page, as their errors may be long.
const looks = 10_000

// diedAt is the time in a place among dead letters.
func diedAt(place string) time.Time {
	var micros, id int64
	if _, err := fmt.Sscanf(place, "dead.%d.%d", &micros, &id); err != nil {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}
