package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// list is a list of tasks with a form of filters, and its words.
type list struct {
	of          taskview.Tasks
	Page        string // its route
	Title       string
	One, Many   string
	AfterAsking string // which tasks a bulk action leaves, as they came after its question
}

var (
	deadLetters = &list{
		of: taskview.DeadLetters, Page: "dead", Title: "Dead letters", One: "dead letter",
		Many: "dead letters", AfterAsking: "Tasks that die after this question stay.",
	}
	otherTasks = &list{
		of: taskview.OtherTasks, Page: "tasks", Title: "Tasks", One: "task",
		Many: "tasks", AfterAsking: "Tasks that are enqueued after this question stay.",
	}
)

// listData is a page of a list.
type listData struct {
	Filter  filter
	Types   []string // that the form offers
	Counted bool     // the counters have Total
	Total   int64    // in the state, and of the type
	Matched bool     // Match is how many pass the filter
	Match   admin.TaskCount
	Groups  []errorGroup
	Page    admin.TaskPage
	First   bool
	Reached reach // zero: the page is full
}

// Noun is the noun of the numbers of the page.
func (d listData) Noun() string {
	n, noun := d.Total, d.Filter.List.Many
	if !d.Counted {
		n = d.Match.Count
	}
	if n == 1 {
		noun = d.Filter.List.One
	}
	return strings.TrimPrefix(string(d.Filter.By.State)+" "+noun, " ")
}

// Actions are the bulk actions that take tasks of the filter's state.
func (d listData) Actions() (out []*action) {
	for _, a := range actions {
		if a.List == d.Filter.List && len(a.takes(d.Filter.By.State)) > 0 {
			out = append(out, a)
		}
	}
	return out
}

// listPage is the page of a list.
func listPage(l *list) func(*view) error {
	return func(v *view) error {
		q := v.r.URL.Query()
		f, err := v.filterOf(l, q)
		if err != nil {
			return err
		}
		s, err := v.snapshot()
		if err != nil {
			return err
		}
		d := listData{Filter: f, First: q.Get("after") == ""}
		for _, t := range s.types {
			if l == otherTasks || t.Dead > 0 {
				d.Types = append(d.Types, t.Type)
			}
		}
		state := f.State()
		if d.Counted = state != "" && state != admin.StateFinished; d.Counted {
			d.Total = s.count(f.By.Type, state)
		}
		tasks := admin.TaskQuery{Filter: f.tasks(), After: q.Get("after"), Limit: pageSize, MaxScan: looks}
		d.Page, err = get(v, func(c *admin.Client, ctx context.Context) (admin.TaskPage, error) {
			return c.Tasks(ctx, tasks)
		})
		if err != nil {
			return err
		}
		if d.First && !v.htmx() {
			if err := v.read(d.groups); err != nil && !tooLong(err) { // else the list is worth showing
				return err
			}
		}
		if len(d.Page.Tasks) < pageSize {
			d.Reached = reachOf(d.Page.Next, v.Now)
		}
		// A search by a field without an index reads many rows, so it runs only when asked. A list
		// with buttons stays as it is, so that no other row moves under the pointer.
		v.Live = f.indexed() && (l == otherTasks || !v.MayOperate())
		return v.show(http.StatusOK, "list.html", l.Title, d)
	}
}

// looks is the number of tasks that a search reads for a page, as their errors may be long.
const looks = 10_000

// groups reads the most frequent errors of dead or retrying tasks, and the number of matches up to
// a bound.
func (d *listData) groups(ctx context.Context, c *admin.Client) (err error) {
	if s := d.Filter.State(); s == admin.StateDead || s == admin.StateRetrying {
		if d.Groups, err = d.Filter.errors(ctx, c); err != nil {
			return err
		}
	}
	if d.Filter.only("type", "state") {
		return nil
	}
	d.Match, err = c.Count(ctx, admin.TaskQuery{Filter: d.Filter.tasks(), MaxScan: looks})
	d.Matched = err == nil
	return err
}

// errorGroup is a line of a table of errors.
type errorGroup struct {
	Group admin.ErrorGroup
	Link  string // to those tasks
}

// errors are the most frequent errors of the tasks that pass. Each links to the tasks whose error
// has the group's longest text without a number.
func (f filter) errors(ctx context.Context, c *admin.Client) (out []errorGroup, err error) {
	found, err := c.ErrorGroups(ctx, admin.TaskQuery{Filter: f.tasks()})
	for _, g := range found {
		longest := ""
		for part := range strings.SplitSeq(g.Error, "#") {
			if part = strings.TrimSpace(part); len(part) > len(longest) {
				longest = part
			}
		}
		f.By.Type, f.By.Error = g.Type, longest
		out = append(out, errorGroup{Group: g, Link: f.Link(f.List.Page, "", "")})
	}
	return out, err
}

// reach is how far a search has come.
type reach struct {
	Words string // in front of the time, or of the id
	Time  time.Time
	ID    int64
	Now   time.Time
	Then  string // what the search reads next
}

// reachOf reads a place of the lists that searches go through.
func reachOf(place string, now time.Time) reach {
	var micros, id int64
	if n, _ := fmt.Sscanf(place, "newest.%d", &id); n == 1 {
		return reach{Words: "with ids from", ID: id, Then: "older ones"}
	}
	r := reach{Words: "that died since", Then: "older ones", Now: now}
	n, _ := fmt.Sscanf(place, "dead.%d.%d", &micros, &id)
	if n == 0 {
		r.Words, r.Then = "that are due until", "later ones"
		n, _ = fmt.Sscanf(place, "scheduled.%d.%d", &micros, &id)
	}
	if r.Time = time.UnixMicro(micros); n == 0 {
		return reach{}
	}
	return r
}

// filter is a filter of a list, as forms and addresses have it.
type filter struct {
	List    *list
	By      admin.Filter
	secrets bool // the viewer may filter by keys and payloads
}

// filterOf reads the filter of a list. It refuses fields of other lists: an action without such a
// field would take more tasks than were meant.
func (v *view) filterOf(l *list, q url.Values) (f filter, err error) {
	f = filter{List: l, secrets: v.MayPayload()}
	for _, of := range taskview.Filters {
		text := q.Get(of.Name)
		switch {
		case text == "":
			continue
		case of.Of != taskview.AnyTasks && of.Of != l.of:
			return f, badRequest(fmt.Sprintf("The filter is not valid: a %s has no %s here.",
				l.One, of.Name))
		case of.Secret && !f.secrets:
			return f, problem{http.StatusForbidden, "", "Your role does not show keys and payloads, " +
				"so it may not filter by them."}
		}
		if err := of.Set(&f.By, text); err != nil {
			return f, badRequest("The filter is not valid: " + err.Error() + ".")
		}
	}
	return f, nil
}

// State is the state of all tasks that pass; "" is any.
func (f filter) State() admin.State {
	if f.List == deadLetters {
		return admin.StateDead
	}
	return f.By.State
}

// tasks is the filter for reads.
func (f filter) tasks() admin.Filter {
	f.By.State = f.State()
	return f.By
}

// filterField is a field of the form, or of one that repeats the filter.
type filterField struct {
	taskview.Filter
	Value string
}

// Fields are all fields of the form. types are offered, as is each field's present value.
func (f filter) Fields(types []string) (out []filterField) {
	for _, of := range taskview.FiltersOf(f.List.of) {
		if of.Secret && !f.secrets {
			continue
		}
		field := filterField{of, of.Get(f.By)}
		if of.Name == "type" {
			for _, t := range types {
				field.Choices = append(field.Choices, taskview.Choice{Value: t, Words: t})
			}
		}
		present := taskview.Choice{Value: field.Value, Words: field.Value}
		known := slices.ContainsFunc(field.Choices, func(c taskview.Choice) bool {
			return c.Value == present.Value
		})
		if of.Any != "" && present.Value != "" && !known {
			field.Choices = append(slices.Clip(field.Choices), present)
		}
		out = append(out, field)
	}
	return out
}

// query has the filter as filterOf reads it.
func (f filter) query() url.Values {
	q := url.Values{}
	for _, field := range f.Fields(nil) {
		if field.Value != "" {
			q.Set(field.Name, field.Value)
		}
	}
	return q
}

// only reports whether no other fields than these are set.
func (f filter) only(names ...string) bool {
	for name := range f.query() {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// indexed reports whether an index has the list.
func (f filter) indexed() bool {
	if f.List == deadLetters {
		return f.only("type", "older")
	}
	oneTable := f.By.State == admin.StateDead || f.By.State == admin.StateFinished
	return f.only("type", "state") && (oneTable || (f.By.Type == "") == (f.By.State == ""))
}

// Words are the filter in words, with the keys and the payload that the viewer gave.
func (f filter) Words() string { return taskview.Words(f.By) }

func (f filter) Any() bool { return !f.only() }

// All are the words for all tasks that pass.
func (f filter) All() string {
	if f.Any() {
		return "all that match"
	}
	return "all"
}

// Link is an address with the filter in it, and one value more.
func (f filter) Link(page, key, value string) string {
	q := f.query()
	if value != "" {
		q.Set(key, value)
	}
	return address(page, q)
}

// DeadLink leads from dead tasks to the page of dead letters.
func (f filter) DeadLink() string {
	f.List = deadLetters
	return f.Link("dead", "", "")
}
