package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// event is one line of a timeline.
type event struct {
	At    time.Time
	Text  string
	Tone  string
	Error string
}

// timeline is what is known of a task's life, in the order of time.
func timeline(t admin.Task) (out []event) {
	out = append(out, event{At: t.CreatedAt, Text: "enqueued"})
	if t.State == admin.Scheduled || t.State == admin.Ready && t.RunAt.After(t.CreatedAt.Add(time.Second)) {
		out = append(out, event{At: t.RunAt, Text: "due"})
	}
	for _, e := range t.Timeline {
		out = append(out, eventOf(e))
	}
	for _, r := range t.Runs {
		if r.Lost {
			out = append(out, event{At: r.StartedAt, Text: "a run began that was lost, on relay " + visible(r.RelayID), Tone: "bad"})
		} else {
			out = append(out, event{At: r.StartedAt, Text: fmt.Sprintf("attempt %d running, on relay %s", max(t.Attempt, 1), visible(r.RelayID)), Tone: "good"})
		}
	}
	if !t.LeasedUntil.IsZero() {
		out = append(out, event{At: t.LeasedUntil, Text: "lease ends"})
	}
	slices.SortStableFunc(out, func(a, b event) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return out
}

func eventOf(e admin.Event) event {
	out := event{At: e.At, Tone: "bad", Error: e.Error}
	switch attempt := fmt.Sprint("attempt ", e.Attempt); e.Kind {
	case admin.EventFailed:
		out.Text = attempt + " failed"
		if e.Duration > 0 {
			out.Text += " after " + duration(e.Duration)
		}
	case admin.EventThrottled:
		out.Text, out.Tone = attempt+" throttled", ""
		if e.Times > 1 {
			out.Text += fmt.Sprintf(", %d times until %s", e.Times, e.LastAt.UTC().Format(time.DateTime))
		}
	case admin.EventLost:
		out.Text = attempt + " lost: its process died"
	case admin.EventExpired:
		out.Text = attempt + " lost: its lease ran out"
	case admin.EventRedriven:
		out.Text, out.Tone = "redriven", ""
		if e.Actor != "" {
			out.Text += " by " + visible(e.Actor)
		}
	case admin.EventReplaced:
		out.Text, out.Tone = "replaced by an enqueue of its unique key", ""
	case admin.EventFinished:
		out.Text, out.Tone = "finished in "+attempt, "good"
	case admin.EventDiscarded:
		out.Text, out.Tone = "discarded in "+attempt, ""
	case admin.EventDead:
		out.Text = "dead letter: " + reasonText(e.Reason)
		return out
	default:
		out.Text = visible(string(e.Kind))
	}
	if e.Reason != "" {
		out.Text += ", dead letter: " + reasonText(e.Reason)
	}
	return out
}

// lastFailure says of which attempt the last error is, and of when; zero where that is not known.
func (d taskData) LastFailure() admin.Event {
	for _, e := range slices.Backward(d.Task.Timeline) {
		if e.Error != "" {
			return e
		}
	}
	return admin.Event{}
}
