package store

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/timeline"
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

// attemptErrors are the attempts with the present payload in a timeline, for the handler.
func attemptErrors(column json.RawMessage) (all []outbox.FailedAttempt) {
	for _, e := range timeline.Read(column) {
		switch e.Event {
		case timeline.Replaced:
			all = nil
			continue
		case timeline.Redriven, timeline.Dead, timeline.Throttled:
			continue
		}
		a := outbox.FailedAttempt{Attempt: e.Attempt, RelayID: e.Relay, Duration: time.Duration(e.Micros) * time.Microsecond, Error: e.Error}
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
