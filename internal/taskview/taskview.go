// Package taskview has the facts, the events and the filters of tasks that the dashboard and the
// command line show, as text. A new column of a task is a line in facts, a new filter a line in
// Filters.
package taskview

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

// Fact is a name and a value: a time.Time, a time.Duration, a number or a string.
type Fact struct {
	Name  string
	Value any
}

// facts are shown of each task alone; those that are listed are columns of lists, too.
var facts = []struct {
	name   string
	listed bool
	of     func(t admin.Task) any
}{
	{"key", false, func(t admin.Task) any { return t.Key }},
	{"type", false, func(t admin.Task) any { return t.Type }},
	{"priority", false, func(t admin.Task) any { return fmt.Sprint(t.Priority) }}, // also 0
	{"reason", false, func(t admin.Task) any { return strings.TrimSuffix(string(t.Reason)+": "+Reason(t.Reason), ": ") }},
	{"outcome", false, func(t admin.Task) any { return Outcome(t) }},
	{"attempts", false, func(t admin.Task) any { return Attempts(t) }},
	{"progress", false, func(t admin.Task) any { return Progress(t.Progress) }},
	{"iterations", true, func(t admin.Task) any { return t.Iterations }},
	{"timeout", false, func(t admin.Task) any { return t.Timeout }},
	{"created", false, func(t admin.Task) any { return t.CreatedAt }},
	{"due", false, func(t admin.Task) any { return t.RunAt }},
	{"expires", false, func(t admin.Task) any { return t.ExpiresAt }},
	{"unique until", false, func(t admin.Task) any { return t.UniqueUntil }},
	{"last attempt", false, func(t admin.Task) any { return t.AttemptedAt }},
	{"ended", false, func(t admin.Task) any { return t.EndedAt }},
	{"kept until", false, func(t admin.Task) any { return t.KeepUntil }},
	{"leased until", false, func(t admin.Task) any { return t.LeasedUntil }},
	{"asked to end", false, func(t admin.Task) any { return t.CancelRequestedAt }},
	{"relay", false, func(t admin.Task) any { return t.RelayID }},
}

// Facts returns the facts of a task that are not empty or zero.
func Facts(t admin.Task) []Fact {
	out := []Fact{}
	for _, f := range facts {
		if value := f.of(t); !empty(value) {
			out = append(out, Fact{f.name, value})
		}
	}
	return out
}

func empty(value any) bool {
	return slices.Contains([]any{"", 0, time.Duration(0), time.Time{}}, value)
}

// Column is a column of a list of tasks, with the text of each task's value; "" is none.
type Column struct {
	Name string
	Of   func(t admin.Task) string
}

// Columns returns the columns that only lists have in which a task has such a value.
func Columns(tasks []admin.Task) (out []Column) {
	for _, f := range facts {
		text := func(t admin.Task) string {
			if value := f.of(t); !empty(value) {
				return fmt.Sprint(value)
			}
			return ""
		}
		if f.listed && slices.ContainsFunc(tasks, func(t admin.Task) bool { return text(t) != "" }) {
			out = append(out, Column{f.name, text})
		}
	}
	return out
}

// State is the state of a task at a time. A scheduled or retrying task whose time has come is due: a relay is
// to make it ready.
func State(t admin.Task, now time.Time) string {
	if (t.State == admin.StateScheduled || t.State == admin.StateRetrying) && !t.RunAt.After(now) {
		return "due"
	}
	return string(t.State)
}

// Schedule is the state of a schedule, and what is wrong with it.
func Schedule(s admin.Schedule) string {
	switch {
	case s.Wrong != "":
		return "wrong: " + s.Wrong
	case s.Paused:
		return "paused"
	case !s.NextAt.IsZero():
		return "on"
	case s.Stored && s.LastAt.IsZero():
		return "new"
	}
	return "ended"
}

// Origin says whose a schedule is.
func Origin(s admin.Schedule) string {
	if s.Stored {
		return "stored"
	}
	return "code"
}

// Attempts is like "2 of 5".
func Attempts(t admin.Task) string {
	if t.MaxAttempts == 0 {
		return fmt.Sprint(t.Attempt)
	}
	return fmt.Sprintf("%d of %d", t.Attempt, t.MaxAttempts)
}

// Progress is like "40 %: 400 of 1,000"; "" without one.
func Progress(p *admin.Progress) string {
	if p == nil {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("%.0f %%: %s", 100*p.Fraction, p.Message), ": ")
}

// Outcome is what a finished task ended as, and what for; "" of other tasks.
func Outcome(t admin.Task) string {
	if t.LastError == "" || t.State != admin.StateFinished {
		return t.Outcome
	}
	return t.Outcome + ": " + t.LastError
}

// Cause is the text of a cause with its end, by when.
func Cause(c admin.Cause, when func(time.Time) string) string {
	if c.Until.IsZero() {
		return c.Text
	}
	return c.Text + " (until " + when(c.Until) + ")"
}

// Causes are the causes of a Why as lines, with their remedies.
func Causes(w admin.Why, when func(time.Time) string) (lines []string) {
	for _, c := range w.Causes {
		line := Cause(c, when)
		if c.Remedy != "" {
			line += " → " + c.Remedy
		}
		lines = append(lines, line)
	}
	return lines
}

// Reasons are the reasons of dead letters with what they mean.
var Reasons = map[outbox.Reason]string{
	outbox.ReasonAttempts:        "all attempts were used",
	outbox.ReasonHandler:         "its handler gave it up",
	outbox.ReasonLostConnections: "ten runs lost their connection",
	outbox.ReasonCommitted:       "its handler committed, then failed",
	outbox.ReasonExpired:         "it had not begun in time",
}

// Reason is the reason of a dead letter in words.
func Reason(reason outbox.Reason) string { return cmp.Or(Reasons[reason], string(reason)) }

// Filter is a field of admin.Filter as text: a flag of the command line and a field of the dashboard's
// forms. "" is no condition.
type Filter struct {
	Name    string
	Label   string // of the form's field
	About   string // the help of the flag
	Any     string // the form's words for "", of a field with choices
	Choices []Choice
	Of      Tasks
	Secret  bool // its column may be secret: see admin.Filter
	Get     func(f admin.Filter) string
	Set     func(f *admin.Filter, text string) error
}

// Tasks are those that a filter is for.
type Tasks int

// The tasks of a filter.
const (
	AnyTasks Tasks = iota
	DeadLetters
	OtherTasks
	FinishedTasks // of the history alone
)

// FiltersOf are the filters that tools offer for some tasks.
func FiltersOf(tasks Tasks) []Filter {
	return slices.DeleteFunc(slices.Clone(Filters), func(f Filter) bool { return f.Of != AnyTasks && f.Of != tasks })
}

// Choice is a value that tools offer.
type Choice struct{ Value, Words string }

// States are the states by which tasks are listed.
var States = []admin.State{admin.StateReady, admin.StateScheduled, admin.StateRetrying, admin.StateLeased,
	admin.StateWaiting, admin.StateDead, admin.StateFinished}

// Filters are all filters.
var Filters = []Filter{
	{
		Name: "type", Label: "Type", About: "of this task type", Any: "all types",
		Get: func(f admin.Filter) string { return f.Type },
		Set: text(func(f *admin.Filter) *string { return &f.Type }),
	},
	{
		Name: "state", Label: "State", About: "in this state: " + stateNames(), Any: "any state", Choices: states(),
		Of:  OtherTasks,
		Get: func(f admin.Filter) string { return string(f.State) },
		Set: func(f *admin.Filter, text string) error { f.State = admin.State(text); return nil },
	},
	{
		Name: "reason", Label: "Reason", About: "that died for: " + strings.Join(reasonNames(), ", "),
		Any: "any reason", Choices: reasons(), Of: DeadLetters,
		Get: func(f admin.Filter) string { return string(f.Reason) },
		Set: func(f *admin.Filter, text string) error { f.Reason = outbox.Reason(text); return nil },
	},
	{
		Name: "error", Label: "Error contains", About: "whose last error contains this text",
		Get: func(f admin.Filter) string { return f.Error },
		Set: func(f *admin.Filter, text string) error {
			f.Error = strings.TrimSpace(text)
			if len(text) > 1024 {
				return errors.New("the text of the error is longer than 1 kB")
			}
			return nil
		},
	},
	{
		Name: "unique", Label: "Unique key", About: "of this unique key", Secret: true,
		Get: func(f admin.Filter) string { return f.UniqueKey },
		Set: text(func(f *admin.Filter) *string { return &f.UniqueKey }),
	},
	{
		Name: "ordered", Label: "Ordering key", About: "of this ordering key", Secret: true,
		Get: func(f admin.Filter) string { return f.OrderingKey },
		Set: text(func(f *admin.Filter) *string { return &f.OrderingKey }),
	},
	{
		Name: "group", Label: "Group key", About: "of this group key", Secret: true,
		Get: func(f admin.Filter) string { return f.GroupKey },
		Set: text(func(f *admin.Filter) *string { return &f.GroupKey }),
	},
	{
		Name: "payload", Label: "Payload contains", Secret: true,
		About: `whose payload contains this JSON, like {"user_id": 7}`,
		Get:   func(f admin.Filter) string { return string(f.Payload) },
		Set: func(f *admin.Filter, text string) error {
			f.Payload = json.RawMessage(text)
			if !json.Valid(f.Payload) {
				return fmt.Errorf("%.40q is no JSON", text)
			}
			return nil
		},
	},
	{
		Name: "older", Label: "Older than",
		About: "at least this old, like 720h: since its death, its end, or else its enqueue",
		Any:   "any age", Choices: []Choice{
			{"1h0m0s", "1 h"}, {"6h0m0s", "6 h"}, {"24h0m0s", "24 h"}, {"168h0m0s", "7 d"}, {"720h0m0s", "30 d"},
		},
		Get: func(f admin.Filter) string { return strings.TrimPrefix(f.OlderThan.String(), "0s") },
		Set: func(f *admin.Filter, text string) (err error) {
			if f.OlderThan, err = time.ParseDuration(text); err != nil || f.OlderThan < 0 {
				return fmt.Errorf("%.40q is no age like 24h", text)
			}
			return nil
		},
	},
}

// text sets a field to the text.
func text(field func(*admin.Filter) *string) func(*admin.Filter, string) error {
	return func(f *admin.Filter, text string) error { *field(f) = text; return nil }
}

// stateNames are the states as a list for people.
func stateNames() string {
	var names []string
	for _, s := range States {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func states() (out []Choice) {
	for _, s := range States {
		out = append(out, Choice{string(s), string(s)})
	}
	return out
}

// Words are a filter in words, also its keys and its payload: for who gave them, and no log.
func Words(f admin.Filter) string {
	var words []string
	plain := f
	plain.UniqueKey, plain.OrderingKey, plain.GroupKey, plain.Payload = "", "", "", nil
	if text := plain.String(); text != "all" {
		words = append(words, text)
	}
	for _, of := range Filters {
		if value := of.Get(f); of.Secret && value != "" {
			words = append(words, strings.ToLower(of.Label)+" "+value)
		}
	}
	return cmp.Or(strings.Join(words, ", "), "all")
}

// Until is a filter as of a time: tasks that die, are enqueued or become old enough later do not pass it.
func Until(f admin.Filter, t time.Time) admin.Filter {
	t = t.Add(-f.OlderThan)
	if f.OlderThan = 0; f.Before.IsZero() || f.Before.After(t) {
		f.Before = t
	}
	return f
}

func reasonNames() (names []string) {
	for reason := range Reasons {
		names = append(names, string(reason))
	}
	slices.Sort(names)
	return names
}

func reasons() (out []Choice) {
	for _, name := range reasonNames() {
		out = append(out, Choice{name, Reason(outbox.Reason(name))})
	}
	return out
}

// Event is a line of a task's timeline.
type Event struct {
	At    time.Time
	Text  string
	Error string
	Tone  Tone
}

// Tone says whether an event is good or bad news.
type Tone string

// The tones.
const (
	Neutral Tone = ""
	Good    Tone = "good"
	Bad     Tone = "bad"
)

var events = map[admin.EventKind]struct {
	text string
	tone Tone
}{
	admin.EventFailed:    {"failed", Bad},
	admin.EventThrottled: {"throttled", Neutral},
	admin.EventLost:      {"lost: its process died", Bad},
	admin.EventLeaseLost: {"lost: its lease ran out", Bad},
	admin.EventDead:      {"", Bad},
	admin.EventRedriven:  {"redriven", Neutral},
	admin.EventReplaced:  {"replaced by an enqueue of its unique key", Neutral},
	admin.EventFinished:  {"finished", Good},
}

// Timeline returns the events of a task and its runs, the oldest first.
func Timeline(t admin.Task) []Event {
	out := []Event{{At: t.CreatedAt, Text: "enqueued"}}
	for _, e := range t.Timeline {
		out = append(out, eventOf(e))
	}
	for _, r := range t.Runs {
		e := Event{At: r.StartedAt, Tone: Good}
		e.Text = fmt.Sprintf("attempt %d running, on relay %s", max(t.Attempt, 1), r.RelayID)
		if r.Lost {
			e.Text, e.Tone = "a run began that was lost, on relay "+r.RelayID, Bad
		}
		if n := len(r.TaskIDs); n > 1 {
			e.Text += fmt.Sprintf(", in a batch of %d", n)
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return out
}

func eventOf(e admin.Event) Event {
	known, ok := events[e.Kind]
	if !ok {
		known.text = string(e.Kind) // plain SQL may have written it
	}
	text := known.text
	if e.Attempt > 0 && text != "" {
		text = fmt.Sprintf("attempt %d %s", e.Attempt, text)
	}
	if e.Times > 1 {
		text += fmt.Sprintf(" %d times until %s UTC", e.Times, e.LastAt.UTC().Format(time.DateTime))
	}
	if e.Duration > 0 {
		text += " after " + e.Duration.Round(100*time.Microsecond).String()
	}
	if e.Actor != "" {
		text += " by " + e.Actor
	}
	if e.Reason != "" {
		text += ", dead letter: " + Reason(e.Reason)
	}
	return Event{At: e.At, Text: strings.TrimPrefix(text, ", "), Error: e.Error, Tone: known.tone}
}

// Sum is the counts of all the types together, with the greatest OldestReady. The rest is zero.
func Sum(types []admin.Type) (sum admin.Type) {
	for _, t := range types {
		sum.Ready += t.Ready
		sum.Scheduled += t.Scheduled
		sum.Retrying += t.Retrying
		sum.Leased += t.Leased
		sum.Waiting += t.Waiting
		sum.Dead += t.Dead
		sum.Finished += t.Finished
		sum.Failed += t.Failed
		sum.OldestReady = max(sum.OldestReady, t.OldestReady)
	}
	return sum
}

// Failing says how a type fails, without the error.
func Failing(f *admin.Failing) string {
	return fmt.Sprintf("failed runs: %d, finished tasks: %d, since %s", f.Failed, f.Finished,
		f.Since.UTC().Format("2006-01-02 15:04 MST"))
}

// TypeRuns are the runs of one type in a relay.
type TypeRuns struct {
	Type   string // "" where it is not known
	Tasks  int
	Oldest admin.Run
	Lost   bool // one of them at least
}

// RunsByType are a relay's runs by type, those with most tasks first.
func RunsByType(r admin.Relay) []TypeRuns {
	by := map[string]TypeRuns{}
	for _, run := range r.Runs { // the oldest first
		of, found := by[run.Type]
		if !found {
			of = TypeRuns{Type: run.Type, Oldest: run}
		}
		of.Tasks += len(run.TaskIDs)
		of.Lost = of.Lost || run.Lost
		by[run.Type] = of
	}
	return slices.SortedFunc(maps.Values(by), func(a, b TypeRuns) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Type, b.Type))
	})
}
