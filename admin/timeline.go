package admin

import (
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/timeline"
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventFailed    EventKind = "failed"     // an attempt
	EventThrottled EventKind = "throttled"  // handlers.RetryAfter, which counted no attempt
	EventLost      EventKind = "lost"       // an attempt whose process died
	EventLeaseLost EventKind = "lease_lost" // an attempt whose lease ran out
	EventDead      EventKind = "dead"       // a dead letter without a call of the handler
	EventRedriven  EventKind = "redriven"   // a dead letter that became a task again
	EventReplaced  EventKind = "replaced"   // its payload, by outbox.OnConflict(outbox.ConflictReplace)
	EventFinished  EventKind = "finished"   // the last one of a task in the history
	EventDiscarded EventKind = "discarded"  // likewise
)

// Event is a change of a task's fate.
type Event struct {
	Kind     EventKind
	Attempt  int           // 0 of a redrive
	At       time.Time     // when it was recorded; of a lost run of Tx or Batch when it began
	RelayID  string        // "" where it is not known
	Duration time.Duration // of the handler's call; 0 where it is not known
	Error    string        // at most 1 kB; of a discarded task 4 kB
	Reason   outbox.Reason // of the event that made the task a dead letter
	Actor    string        // of a redrive; "" if it is unknown
	Times    int           // throttled: the number in a row; At is the first one
	LastAt   time.Time     // throttled several times: the last one
}

// readTimeline sets the Timeline: the entries of the column, and the end of a finished task. A dead
// letter without entries has its death.
func (t *Task) readTimeline(column []byte) {
	for _, e := range timeline.Read(column) {
		event := Event{
			Kind: EventKind(e.Event), Attempt: e.Attempt, RelayID: e.Relay, Duration: time.Duration(e.Micros) * time.Microsecond,
			Error: e.Error, Reason: outbox.Reason(e.Reason), Actor: e.By,
		}
		if e.At != nil {
			event.At = *e.At
		}
		if e.Last != nil {
			event.LastAt = *e.Last
		}
		if event.Kind == EventThrottled {
			event.Times = max(e.Times, 1)
		}
		t.Timeline = append(t.Timeline, event)
	}
	end := Event{Attempt: t.Attempt, At: t.EndedAt, Error: t.LastError}
	switch {
	case t.State == StateFinished && t.LastError != "":
		end.Kind = EventDiscarded
	case t.State == StateFinished:
		end.Kind = EventFinished
	case t.State == StateDead && len(t.Timeline) == 0:
		end.Kind, end.Reason = EventDead, t.Reason
	default:
		return
	}
	t.Timeline = append(t.Timeline, end)
}
