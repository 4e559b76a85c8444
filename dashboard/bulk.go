package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// action is an action on all tasks that pass a filter, and its words.
type action struct {
	Do      admin.Action // also in addresses and in the log
	List    *list
	Short   string     // on its button in the list
	title   string     // with a place for the tasks
	Done    string     // behind the number of tasks
	About   string     // what it does
	Danger  bool       // it cannot be undone
	Field   *bulkField // what it needs besides the filter
	ends    bool       // it asks tasks that run to end
	keyless bool       // it can take skipped ones without their keys
	with    func(value string) (bulkCall, error)
}

// bulkField is a field of the form that asks.
type bulkField struct {
	Label, Hint string
	Type        string // of the input
}

// bulkCall is a method of a client.
type bulkCall func(*admin.Client, context.Context, admin.Filter, admin.Bulk) (admin.BulkResult,
	error)

func withoutValue(call bulkCall) func(string) (bulkCall, error) {
	return func(string) (bulkCall, error) { return call, nil }
}

// actions are all bulk actions, in the order of their buttons.
var actions = []*action{
	{
		Do: admin.ActionRedrive, List: deadLetters,
		Short: "Redrive", title: "Redrive %s", Done: "redriven", keyless: true,
		About: "Each becomes a task again, with its id and its payload, starts at attempt 1, and is " +
			"due at once.",
		with: withoutValue((*admin.Client).Redrive),
	},
	{
		Do: admin.ActionPurge, List: deadLetters,
		Short: "Purge", title: "Purge %s", Done: "purged", Danger: true,
		About: "Purging deletes them, with their payloads. It cannot be undone.",
		with:  withoutValue((*admin.Client).Purge),
	},
	{
		Do: admin.ActionCancel, List: otherTasks,
		Short: "Cancel", title: "Cancel %s", Done: "canceled", Danger: true, ends: true,
		About: "Canceling deletes those that wait, with their payloads, and asks those that run to " +
			"end. It cannot be undone.",
		with: withoutValue((*admin.Client).Cancel),
	},
	{
		Do: admin.ActionRunNow, List: otherTasks,
		Short: "Run now", title: "Run %s now", Done: "made due",
		About: "Each that is scheduled or retrying becomes due at once.",
		with:  withoutValue((*admin.Client).RunNow),
	},
	{
		Do: admin.ActionReschedule, List: otherTasks,
		Short: "Reschedule", title: "Reschedule %s", Done: "rescheduled",
		About: "Each that waits becomes due at the time, or at once if it has passed. Its attempts stay.",
		Field: &bulkField{Label: "Due at, in UTC", Type: "datetime-local"},
		with:  reschedule,
	},
	{
		Do: admin.ActionSetPriority, List: otherTasks,
		Short: "Set priority", title: "Set the priority of %s", Done: "given the priority",
		About: "Each that waits gets the priority.",
		Field: &bulkField{Label: "Priority", Hint: "Lower runs first. 0 is normal.", Type: "number"},
		with:  setPriority,
	},
	{
		Do: admin.ActionRetype, List: otherTasks,
		Short: "Retype", title: "Retype %s", Done: "retyped",
		About: "Each that waits gets the type, and keeps all else. The handler of that type runs it.",
		Field: &bulkField{Label: "New type", Type: "text"},
		with:  retype,
	},
}

func reschedule(value string) (bulkCall, error) {
	at, err := time.Parse("2006-01-02T15:04", value)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", value) // which also takes fractions
	}
	if err != nil {
		return nil, badRequest("The time is not one like 2026-05-31T17:30.")
	}
	return func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk,
	) (admin.BulkResult, error) {
		return c.Reschedule(ctx, f, at, o)
	}, nil
}

func setPriority(value string) (bulkCall, error) {
	priority, err := strconv.ParseInt(value, 10, 16)
	if err != nil {
		return nil, badRequest("The priority is a whole number between -32,768 and 32,767.")
	}
	return func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk,
	) (admin.BulkResult, error) {
		return c.SetPriority(ctx, f, int(priority), o)
	}, nil
}

func retype(value string) (bulkCall, error) {
	return func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk,
	) (admin.BulkResult, error) {
		return c.Retype(ctx, f, value, o)
	}, nil
}

// Of is the title of the action on some tasks.
func (a *action) Of(tasks string) string { return fmt.Sprintf(a.title, tasks) }

// takes are the states of the tasks that the action takes of a filter's state.
func (a *action) takes(state admin.State) []admin.State {
	switch {
	case state == "":
		return a.Do.States()
	case slices.Contains(a.Do.States(), state):
		return []admin.State{state}
	}
	return nil
}

// bulkData is the question before a bulk action, and its progress.
type bulkData struct {
	Action *action
	Filter filter
	Value  string // of the action's field
	Until  int64  // µs since 1970: tasks that came later stay
	Total  int64
	More   bool // there may be more than Total
	Begun  bool
	Done   int64
	After  string // the place where the next request starts
	Left   bool   // some are not done yet
	Going  bool   // the page's script goes on by itself

	Skipped int64 // another task holds their unique key
	Running int64 // of which the action asks the end, or which it leaves
	Keyless bool  // redrive without the keys
}

// Number is a number of tasks with its noun.
func (d bulkData) Number(n int64) string {
	if n == 1 {
		return "1 " + d.Filter.List.One
	}
	return number(n) + " " + d.Filter.List.Many
}

// Share is the progress in percent. It has no meaning if More is true.
func (d bulkData) Share() int64 {
	if !d.Left {
		return 100
	}
	return min(100*(d.Done+d.Skipped+d.Running)/max(d.Total, 1), 99)
}

// WithoutKeys is the action on those that were skipped, without their keys; nil if there is none.
func (d bulkData) WithoutKeys() *bulkData {
	if d.Skipped == 0 || !d.Action.keyless {
		return nil
	}
	return &bulkData{Action: d.Action, Filter: d.Filter, Until: d.Until, Total: d.Skipped,
		Keyless: true}
}

// leftText says how many tasks were skipped or run; "" if there are none.
func (d bulkData) leftText() string {
	text := number(d.Done) + " " + d.Action.Done
	if d.Skipped > 0 {
		why := "other tasks hold their unique keys"
		if d.Skipped == 1 {
			why = "another task holds its unique key"
		}
		text += fmt.Sprintf(", %s skipped: %s", number(d.Skipped), why)
	}
	if d.Running > 0 {
		left := "left as they are"
		if d.Action.ends {
			left = "asked to end"
		}
		text += fmt.Sprintf(", %s running: %s", number(d.Running), left)
	}
	if d.Skipped+d.Running == 0 {
		return ""
	}
	return text + "."
}

// bulkOf reads the action, its filter and its progress.
func (v *view) bulkOf(q url.Values) (d bulkData, err error) {
	i := slices.IndexFunc(actions, func(a *action) bool { return string(a.Do) == q.Get("do") })
	if i < 0 {
		return d, badRequest("There is no such action.")
	}
	d = bulkData{Action: actions[i], Value: q.Get("value"), After: q.Get("after"),
		More: q.Get("more") == "1", Keyless: q.Get("keyless") == "1"}
	for key, to := range map[string]*int64{"until": &d.Until, "total": &d.Total, "done": &d.Done,
		"skipped": &d.Skipped, "running": &d.Running} {
		if s := q.Get(key); s != "" {
			if *to, err = strconv.ParseInt(s, 10, 64); err != nil {
				return d, badRequest("The form has an invalid number.")
			}
		}
	}
	if d.Filter, err = v.filterOf(d.Action.List, q); err != nil {
		return d, err
	}
	if state := d.Filter.By.State; len(d.Action.takes(state)) == 0 {
		return d, badRequest(fmt.Sprintf("This action takes no %s tasks.", state))
	}
	return d, nil
}

// askBulk asks for confirmation, with the number of tasks.
func (v *view) askBulk() error {
	d, err := v.bulkOf(v.r.URL.Query())
	if err != nil {
		return err
	}
	d = bulkData{Action: d.Action, Filter: d.Filter} // a link cannot begin it
	if d.Total, d.More, err = v.countBulk(d.Action, d.Filter); err != nil {
		return err
	}
	d.Until = v.Now.UnixMicro()
	return v.showBulk(d)
}

func (v *view) showBulk(d bulkData) error {
	v.Section = d.Action.List.Page
	return v.show(http.StatusOK, "bulk.html", d.Action.Of(d.Action.List.Many), d)
}

// countBulk counts the tasks that the action takes: by the counters if these suffice, else by
// reading rows. If more is true, there may be more.
func (v *view) countBulk(a *action, f filter) (n int64, more bool, err error) {
	states := a.takes(f.By.State)
	if f.only("type", "state") {
		s, err := v.snapshot()
		if err != nil {
			return 0, false, err
		}
		return s.count(f.By.Type, states...), false, nil
	}
	err = v.read(func(ctx context.Context, c *admin.Client) error {
		for _, state := range states {
			f.By.State = state
			found, err := c.Count(ctx, admin.TaskQuery{Filter: f.By, MaxScan: looks})
			if err != nil {
				return err
			}
			n, more = n+found.Count, more || found.Next != ""
		}
		return nil
	})
	if tooLong(err) {
		return n, true, nil
	}
	return n, more, err
}

// bulkFor bounds the work of one request. With script the page sends the next one by itself.
const bulkFor = 2 * time.Second

// bulk acts for bulkFor, in transactions of 1,000 tasks that each have an audit entry, and reports
// the rest. Closing the page ends it after the current transaction. A repeated request does no harm.
func (v *view) bulk() error {
	d, err := v.bulkOf(v.r.PostForm)
	if err != nil {
		return err
	}
	if d.Until == 0 {
		return badRequest("The form lacks the time of its question.")
	}
	if f := d.Action.Field; f != nil && d.Value == "" {
		return badRequest(fmt.Sprintf("The field “%s” is empty.", f.Label))
	}
	call, err := d.Action.with(d.Value)
	if err != nil {
		return err
	}
	by := taskview.Until(d.Filter.By, time.UnixMicro(d.Until))
	v.limit = 2 * v.site.config.StatementTimeout
	start := time.Now()
	o := admin.Bulk{After: d.After, WithoutKey: d.Keyless, Timeout: v.limit,
		Progress: func(admin.BulkResult) bool {
			return time.Since(start) < bulkFor && v.r.Context().Err() == nil
		}}
	var r admin.BulkResult
	_, err = v.acted(string(d.Action.Do), by.String(), bulkFor+v.limit,
		func(ctx context.Context, c *admin.Client) (n int64, err error) {
			r, err = call(c, ctx, by, o)
			if n = int64(len(r.IDs)); d.Action.ends {
				n += int64(len(r.Running))
			}
			return n, err
		})
	d.Done, d.Skipped = d.Done+int64(len(r.IDs)), d.Skipped+int64(len(r.Skipped))
	d.Running, d.After = d.Running+int64(len(r.Running)), r.Next
	if err != nil && d.Done+d.Skipped+d.Running == 0 {
		return err
	}
	if d.Begun, d.Left = true, r.Next != "" || err != nil; err != nil {
		v.Warning = v.explain(err).text // earlier transactions are committed
	}
	if d.Going = d.Left && v.Warning == "" && v.htmx(); !d.Left {
		v.Warning = d.leftText()
	}
	return v.showBulk(d)
}
