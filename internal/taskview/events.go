package taskview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

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
	admin.EventDiscarded: {"discarded", Neutral},
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
