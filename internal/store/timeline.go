package store

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
)

// Event is an entry of the column timeline.
type Event struct {
	Event   string     `json:"event"`
	Attempt int        `json:"attempt,omitempty"`
	At      *time.Time `json:"at,omitempty"` // nil: when it is written
	Relay   string     `json:"relay,omitempty"`
	Micros  int64      `json:"us,omitempty"` // of the handler's call
	Error   string     `json:"error,omitempty"`
	Reason  string     `json:"reason,omitempty"` // why the task was a dead letter then
	By      string     `json:"by,omitempty"`
}

// The events.
const (
	EventFailed    = "failed"
	EventThrottled = "throttled" // several in a row are one entry (add_events)
	EventLost      = "lost"      // its process died
	EventExpired   = "expired"   // its lease ran out
	EventDead      = "dead"      // without a call of the handler
	EventRedriven  = "redriven"
	EventReplaced  = "replaced" // by OnConflict(Replace): what follows is of another payload
)

// maxEventError is of how many bytes an error is in the timeline.
const maxEventError = 1 << 10

func cut(text string) string {
	if len(text) <= maxEventError {
		return text
	}
	end := maxEventError
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// readEvents reads a timeline.
func readEvents(timeline json.RawMessage) []Event {
	if len(timeline) == 0 { // as of most tasks, which allocate nothing
		return nil
	}
	var all []Event
	_ = json.Unmarshal(timeline, &all) // plain SQL may have written something else
	return all
}

// attemptErrors are the attempts with the present payload in a timeline, for the handler.
func attemptErrors(timeline json.RawMessage) (all []outbox.AttemptError) {
	for _, e := range readEvents(timeline) {
		switch e.Event {
		case EventReplaced:
			all = nil
			continue
		case EventRedriven, EventDead, EventThrottled:
			continue
		}
		a := outbox.AttemptError{Attempt: e.Attempt, RelayID: e.Relay, Duration: time.Duration(e.Micros) * time.Microsecond, Error: e.Error}
		if e.At != nil {
			a.At = *e.At
		}
		if a.Error == "" {
			a.Error = e.Event
		}
		all = append(all, a)
	}
	return all
}
