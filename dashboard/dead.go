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
	admin.ErrorGroup
	Link string // to those dead letters
}

// groupOf links to the dead letters whose error has the group's longest text without a number.
func groupOf(g admin.ErrorGroup, f deadFilter) deadGroup {
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
	d.TaskPage, err = get(v, func(c *admin.Client, ctx context.Context) (admin.TaskPage, error) {
		return c.DeadLetters(ctx, dead)
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

// deadFilter is a filter of dead letters, as forms and addresses have it.
type deadFilter struct{ admin.DeadFilter }

func deadFilterOf(q url.Values) (f deadFilter, err error) {
	for _, of := range taskview.Filters {
		if text := q.Get(of.Name); text != "" {
			if err := of.Set(&f.DeadFilter, text); err != nil {
				return f, badRequest("The filter is not valid: " + err.Error() + ".")
			}
		}
	}
	return f, nil
}

// filterField is a field of the form, or of one that repeats the filter.
type filterField struct {
	taskview.Filter
	Value string
}

// Fields are all fields of the form. types are offered, as is each field's present value.
func (f deadFilter) Fields(types []string) (out []filterField) {
	for _, of := range taskview.Filters {
		field := filterField{of, of.Get(f.DeadFilter)}
		if of.Name == "type" {
			for _, t := range types {
				field.Choices = append(field.Choices, taskview.Choice{Value: t, Words: t})
			}
		}
		known := slices.ContainsFunc(field.Choices, func(c taskview.Choice) bool { return c.Value == field.Value })
		if of.Any != "" && field.Value != "" && !known {
			field.Choices = append(slices.Clip(field.Choices), taskview.Choice{Value: field.Value, Words: field.Value})
		}
		out = append(out, field)
	}
	return out
}

// query has the filter as deadFilterOf reads it.
func (f deadFilter) query() url.Values {
	q := url.Values{}
	for _, of := range taskview.Filters {
		if text := of.Get(f.DeadFilter); text != "" {
			q.Set(of.Name, text)
		}
	}
	return q
}

// searches reports whether only the rows tell which pass.
func (f deadFilter) searches() bool {
	f.Type = ""
	return f.Any()
}

// reads reports whether all rows that an index finds have to be read for it.
func (f deadFilter) reads() bool {
	f.OlderThan = 0
	return f.searches()
}

func (f deadFilter) Any() bool { return f.String() != "all" }

// Link is an address with the filter in it, and one value more.
func (f deadFilter) Link(page, key, value string) string {
	q := f.query()
	if value != "" {
		q.Set(key, value)
	}
	return address(page, q)
}

// bulkData is the question before a bulk action, and its progress.
type bulkData struct {
	Do     string // redrive, purge
	Filter deadFilter
	Until  int64 // µs since 1970: letters that died later stay
	Total  int64
	More   bool // there may be more than Total
	Begun  bool
	Done   int64
	After  string // the place where the next request starts
	Left   bool   // some are not done yet
	Going  bool   // the page's script goes on by itself

	Skipped int64 // not redriven, as another task holds their unique key
	Keyless bool  // redrive without the keys
}

// Share is the progress in percent. It has no meaning if More is true.
func (d bulkData) Share() int64 {
	if !d.Left {
		return 100
	}
	return min(100*d.Done/max(d.Total, 1), 99)
}

// WithoutKeys is the action that redrives those that were skipped.
func (d bulkData) WithoutKeys() bulkData {
	return bulkData{Do: d.Do, Filter: d.Filter, Until: d.Until, Total: d.Skipped, Keyless: true}
}

// skippedText says how many were redriven and skipped.
func (d bulkData) skippedText() string {
	why := "other tasks hold their unique keys"
	if d.Skipped == 1 {
		why = "another task holds its unique key"
	}
	return fmt.Sprintf("%s redriven, %s skipped: %s.", number(d.Done), number(d.Skipped), why)
}

func bulkOf(q url.Values) (d bulkData, err error) {
	d = bulkData{Do: q.Get("do"), After: q.Get("after"), More: q.Get("more") == "1", Keyless: q.Get("keyless") == "1"}
	if d.Do != "redrive" && d.Do != "purge" {
		return d, badRequest("Dead letters can be redriven or purged.")
	}
	for key, to := range map[string]*int64{"until": &d.Until, "total": &d.Total, "done": &d.Done,
		"skipped": &d.Skipped} {
		if s := q.Get(key); s != "" {
			if *to, err = strconv.ParseInt(s, 10, 64); err != nil {
				return d, badRequest("The form has an invalid number.")
			}
		}
	}
	d.Filter, err = deadFilterOf(q)
	return d, err
}

// askBulk asks for confirmation, with the number of dead letters.
func (v *view) askBulk() error {
	d, err := bulkOf(v.r.URL.Query())
	if err != nil {
		return err
	}
	d = bulkData{Do: d.Do, Filter: d.Filter} // a link cannot begin it
	if d.Total, d.More, err = v.countDead(d.Filter); err != nil {
		return err
	}
	d.Until = v.Now.UnixMicro()
	return v.showBulk(d)
}

func (v *view) showBulk(d bulkData) error {
	v.Section = "dead"
	return v.show(http.StatusOK, "bulk.html",
		map[string]string{"redrive": "Redrive", "purge": "Purge"}[d.Do]+" dead letters", d)
}

// countDead counts the dead letters that pass the filter: by the counters if these suffice, else by
// reading rows. If more is true, there may be more.
func (v *view) countDead(f deadFilter) (n int64, more bool, err error) {
	if !f.searches() {
		s, err := v.snapshot()
		if err != nil {
			return 0, false, err
		}
		return s.dead(f.Type), false, nil
	}
	found, err := get(v, func(c *admin.Client, ctx context.Context) (admin.DeadCount, error) {
		return c.CountDeadLetters(ctx, admin.DeadQuery{Filter: f.DeadFilter, MaxScan: looks})
	})
	if tooLong(err) {
		return 0, true, nil
	}
	return found.Count, found.Next != "", err
}

// bulkFor bounds the work of one request. With script the page sends the next one by itself.
const bulkFor = 2 * time.Second

// bulk redrives or purges for bulkFor, in transactions of 1,000 dead letters that each have an audit
// entry, and reports the rest. Closing the page ends it after the current transaction. A repeated
// request does no harm.
func (v *view) bulk() error {
	d, err := bulkOf(v.r.PostForm)
	if err != nil {
		return err
	}
	if d.Until == 0 {
		return badRequest("The form lacks the time of its question.")
	}
	filter := taskview.Until(d.Filter.DeadFilter, time.UnixMicro(d.Until))
	do := (*admin.Client).Redrive
	if d.Do == "purge" {
		do = (*admin.Client).Purge
	}
	v.limit = 2 * v.site.config.StatementTimeout
	start := time.Now()
	o := admin.Bulk{After: d.After, WithoutKey: d.Keyless, Timeout: v.limit, Progress: func(admin.BulkResult) bool {
		return time.Since(start) < bulkFor && v.r.Context().Err() == nil
	}}
	var r admin.BulkResult
	_, err = v.acted(d.Do, filter.String(), bulkFor+v.limit, func(ctx context.Context, c *admin.Client) (int64, error) {
		r, err = do(c, ctx, filter, o)
		return int64(len(r.IDs)), err
	})
	d.Done, d.Skipped, d.After = d.Done+int64(len(r.IDs)), d.Skipped+int64(len(r.Skipped)), r.Next
	if err != nil && d.Done+d.Skipped == 0 {
		return err
	}
	if d.Begun, d.Left = true, r.Next != "" || err != nil; err != nil {
		v.Warning = v.explain(err).text // earlier transactions are committed
	}
	d.Going = d.Left && v.Warning == "" && v.htmx()
	if d.Skipped > 0 && !d.Left {
		v.Warning = d.skippedText()
	}
	return v.showBulk(d)
}
