package admin

import (
	"encoding/json"
	"time"
)

// EventKind says what an Event is about.
type EventKind string

// The kinds of events.
const (
	EventFailed    EventKind = "failed"    // an attempt
	EventThrottled EventKind = "throttled" // handlers.RetryAfter, which counted no attempt
	EventLost      EventKind = "lost"      // an attempt whose process died
	EventExpired   EventKind = "expired"   // an attempt whose lease ran out
	EventDead      EventKind = "dead"      // a dead letter without a call of the handler
	EventRedriven  EventKind = "redriven"  // a dead letter that became a task again
	EventReplaced  EventKind = "replaced"  // its payload, by outbox.OnConflict(outbox.Replace)
	EventFinished  EventKind = "finished"  // the last one of a task in the history
	EventDiscarded EventKind = "discarded" // likewise
)

// Event is something that became of a task.
type Event struct {
	Kind     EventKind
	Attempt  int           // 0 of a redrive
	At       time.Time     // when it was recorded; of a lost run of Tx or Batch when it began
	RelayID  string        // "" where it is not known
	Duration time.Duration // of the handler's call; 0 where it is not known
	Error    string        // at most 1 kB; of a discarded task 4 kB
	Reason   string        // of the event that made the task a dead letter: one of the constants
	Actor    string        // who redrove it; "" where that is not known
	Times    int           // throttled: how often in a row; At is the first one
	LastAt   time.Time     // throttled several times: the last one
}

// readTimeline sets the Timeline: the column's entries, and the end of a finished task. A dead
// letter of before the column was there has its death only.
func (t *Task) readTimeline(column []byte) {
	var stored []struct {
		Event, Relay, Error, Reason, By string
		Attempt                         int
		At, Last                        time.Time
		Us                              int64
		Times                           int
	}
	_ = json.Unmarshal(column, &stored) // plain SQL may have written something else
	for _, e := range stored {
		event := Event{Kind: EventKind(e.Event), Attempt: e.Attempt, At: e.At, RelayID: e.Relay, Duration: time.Duration(e.Us) * time.Microsecond,
			Error: e.Error, Reason: e.Reason, Actor: e.By, LastAt: e.Last}
		if event.Kind == EventThrottled {
			event.Times = max(e.Times, 1)
		}
		t.Timeline = append(t.Timeline, event)
	}
	switch {
	case t.State == Finished && t.LastError != "":
		t.Timeline = append(t.Timeline, Event{Kind: EventDiscarded, Attempt: t.Attempt, At: t.EndedAt, Error: t.LastError})
	case t.State == Finished:
		t.Timeline = append(t.Timeline, Event{Kind: EventFinished, Attempt: t.Attempt, At: t.EndedAt})
	case t.State == Dead && len(stored) == 0:
		t.Timeline = []Event{{Kind: EventDead, Attempt: t.Attempt, At: t.EndedAt, Error: t.LastError, Reason: t.Reason}}
	}
}
