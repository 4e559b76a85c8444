package taskview_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

var at = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// Redrive leaves a task that is scheduled for now, until a relay makes it ready.
func TestAScheduledTaskWhoseTimeHasComeIsDue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state admin.State
		in    time.Duration
		want  string
	}{
		{admin.StateScheduled, time.Microsecond, "scheduled"}, {admin.StateScheduled, 0, "due"},
		{admin.StateScheduled, -time.Hour, "due"}, {admin.StateReady, -time.Hour, "ready"},
		{admin.StateWaiting, -time.Hour, "waiting"}, {admin.StateDead, -time.Hour, "dead"},
	} {
		if got := taskview.State(admin.Task{State: c.state, RunAt: at.Add(c.in)}, at); got != c.want {
			t.Errorf("%s, to run in %v: got %s, want %s", c.state, c.in, got, c.want)
		}
	}
}

func TestEachEventHasASentenceAndATone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		event admin.Event
		want  string
		tone  taskview.Tone
	}{
		{admin.Event{Kind: admin.EventFailed, Attempt: 6, Duration: 1500 * time.Millisecond, Reason: outbox.ReasonAttempts},
			"attempt 6 failed after 1.5s, dead letter: all attempts were used", taskview.Bad},
		{admin.Event{Kind: admin.EventThrottled, Attempt: 1, Times: 7, LastAt: at.Add(time.Minute)},
			"attempt 1 throttled 7 times until 2026-05-01 12:01:00 UTC", taskview.Neutral},
		{admin.Event{Kind: admin.EventThrottled, Attempt: 1, Times: 1}, "attempt 1 throttled", taskview.Neutral},
		{admin.Event{Kind: admin.EventLost, Attempt: 2}, "attempt 2 lost: its process died", taskview.Bad},
		{admin.Event{Kind: admin.EventLeaseLost, Attempt: 2}, "attempt 2 lost: its lease ran out", taskview.Bad},
		{admin.Event{Kind: admin.EventDead, Attempt: 3, Reason: "unheard of"}, "dead letter: unheard of", taskview.Bad},
		{admin.Event{Kind: admin.EventRedriven, Actor: "ada"}, "redriven by ada", taskview.Neutral},
		{admin.Event{Kind: admin.EventReplaced}, "replaced by an enqueue of its unique key", taskview.Neutral},
		{admin.Event{Kind: admin.EventFinished, Attempt: 1}, "attempt 1 finished", taskview.Good},
		{admin.Event{Kind: admin.EventDiscarded, Attempt: 1}, "attempt 1 discarded", taskview.Neutral},
		{admin.Event{Kind: "by hand", Attempt: 1}, "attempt 1 by hand", taskview.Neutral},
	} {
		c.event.At, c.event.Error = at, "no route"
		lines := taskview.Timeline(admin.Task{CreatedAt: at, Timeline: []admin.Event{c.event}})
		if want := (taskview.Event{At: at, Text: c.want, Error: "no route", Tone: c.tone}); len(lines) != 2 || lines[1] != want {
			t.Errorf("%+v: got %+v, want %+v", c.event, lines[1:], want)
		}
	}
}

func TestATimelineHasTheRunsAndIsInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	lines := taskview.Timeline(admin.Task{
		CreatedAt: at, Attempt: 2,
		Timeline: []admin.Event{{Kind: admin.EventFailed, Attempt: 1, At: at.Add(2 * time.Second)}},
		Runs: []admin.Run{
			{RelayID: "r1", StartedAt: at.Add(time.Second), Lost: true, TaskIDs: []int64{1}},
			{RelayID: "r2", StartedAt: at.Add(3 * time.Second), TaskIDs: []int64{1, 2}},
		},
	})
	var got []string
	for _, l := range lines {
		got = append(got, l.Text)
	}
	const want = "enqueued|a run began that was lost, on relay r1|attempt 1 failed|attempt 2 running, on relay r2, in a batch of 2"
	if strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A new field of admin.Task becomes a fact, or is named here.
func TestFactsHaveEachFieldOfATask(t *testing.T) {
	t.Parallel()
	shownElsewhere := []string{"ID", "State", "LastError", "MaxAttempts", "Runs", "Timeline"}
	full := admin.Task{State: admin.StateFinished, Outcome: "discarded", LastError: "old"}
	fields := reflect.TypeFor[admin.Task]()
	for i := range fields.NumField() {
		switch to := reflect.ValueOf(&full).Elem().Field(i); {
		case to.Type() == reflect.TypeFor[time.Time]():
			to.Set(reflect.ValueOf(at))
		case to.Kind() == reflect.String && to.IsZero():
			to.SetString("text")
		case to.Type() == reflect.TypeFor[*admin.Progress]():
			to.Set(reflect.ValueOf(&admin.Progress{Fraction: 0.4}))
		case to.CanInt():
			to.SetInt(int64(time.Second))
		}
	}
	for i := range fields.NumField() {
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		shown := !reflect.DeepEqual(taskview.Facts(less), taskview.Facts(full))
		if name := fields.Field(i).Name; !shown && !slices.Contains(shownElsewhere, name) {
			t.Errorf("no fact shows Task.%s", name)
		}
	}
	if got := fmt.Sprint(taskview.Facts(admin.Task{Priority: 0})); got != "[{priority 0} {attempts 0}]" {
		t.Errorf("a task without values has the facts %s", got)
	}
	if got := taskview.Outcome(full); got != "discarded: old" {
		t.Errorf("the outcome is %q", got)
	}
}

func TestFiltersReadAndWriteText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want, err string }{
		{"type", "MAIL", "type MAIL", ""}, {"reason", "handler", "reason handler", ""},
		{"error", " no route ", `error containing "no route"`, ""}, {"older", "1h30m0s", "older than 1h30m0s", ""},
		{"state", "retrying", "state retrying", ""}, {"unique", "k", "of a unique key", ""},
		{"ordered", "k", "of an ordering key", ""}, {"group", "k", "of a group key", ""},
		{"payload", `{"a": 1}`, "with a payload", ""}, {"payload", `{"a"`, "", "no JSON"},
		{"older", "-1s", "", "no age like 24h"}, {"older", "1y", "", "no age like 24h"},
		{"error", strings.Repeat("x", 1025), "", "longer than 1 kB"},
	} {
		var filter admin.Filter
		for _, f := range taskview.Filters {
			if f.Name != c.name {
				continue
			}
			err := f.Set(&filter, c.text)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s %q: the error is %v, want %q", c.name, c.text, err, c.err)
			}
			if c.err == "" && (filter.String() != c.want || f.Get(filter) != strings.TrimSpace(c.text)) {
				t.Errorf("%s %q: the filter is %v and its text %q", c.name, c.text, filter, f.Get(filter))
			}
		}
	}
}

func TestTheWordsOfAFilterHaveItsSecrets(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]admin.Filter{
		"all":    {},
		"type A": {Type: "A"},
		`type A, unique key u, ordering key o, group key g, payload contains {"a": 1}`: {Type: "A", UniqueKey: "u",
			OrderingKey: "o", GroupKey: "g", Payload: []byte(`{"a": 1}`)},
	} {
		if got := taskview.Words(f); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAFilterAsOfATime(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]admin.Filter{
		"before 2026-05-01T11:35:00Z": {OlderThan: 25 * time.Minute},
		"before 2026-05-01T11:15:00Z": {Before: at.Add(-45 * time.Minute)},
		"before 2026-05-01T12:00:00Z": {Before: at.Add(time.Hour)},
	} {
		if got := taskview.Until(f, at).String(); got != want {
			t.Errorf("%v: got %q, want %q", f, got, want)
		}
	}
}

// A new field of admin.Filter becomes a filter of the tools, or is named here.
func TestFiltersHaveEachFieldOfAFilter(t *testing.T) {
	t.Parallel()
	ofOneTool := []string{"All", "IDs", "Since", "Before"}
	for i, of := 0, reflect.TypeFor[admin.Filter](); i < of.NumField(); i++ {
		var filter, back admin.Filter
		switch field := reflect.ValueOf(&filter).Elem().Field(i); {
		case field.Kind() == reflect.String:
			field.SetString("text")
		case field.Kind() == reflect.Slice && field.Type() != reflect.TypeFor[[]int64]():
			field.SetBytes([]byte(`{"a": 1}`))
		case field.CanInt():
			field.SetInt(int64(time.Second))
		}
		for _, f := range taskview.Filters {
			if text := f.Get(filter); text != "" {
				if err := f.Set(&back, text); err != nil {
					t.Errorf("%s %q: %v", f.Name, text, err)
				}
			}
		}
		name := of.Field(i).Name
		set := !reflect.ValueOf(back).IsZero()
		if set == slices.Contains(ofOneTool, name) || set && !reflect.DeepEqual(back, filter) {
			t.Errorf("Filter.%s: the filters of the tools make %+v of %+v", name, back, filter)
		}
	}
}

func TestListsHaveAColumnIfATaskHasItsValue(t *testing.T) {
	t.Parallel()
	none, some := admin.Task{Attempt: 2}, admin.Task{Iterations: 3}
	if got := taskview.Columns([]admin.Task{none, none}); len(got) != 0 {
		t.Errorf("a list without values has the columns %v", got)
	}
	got := taskview.Columns([]admin.Task{none, some})
	if len(got) != 1 || got[0].Name != "iterations" || got[0].Of(none) != "" || got[0].Of(some) != "3" {
		t.Errorf("the columns are %v", got)
	}
}
