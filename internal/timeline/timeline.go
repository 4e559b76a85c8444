// Package timeline has the entries of a task's column timeline, as relays, SQL and operators' tools
// share them.
package timeline

import (
	"encoding/json"
	"time"
)

// Event is an entry of the column.
type Event struct {
	Event   string     `json:"event"`
	Attempt int        `json:"attempt,omitempty"`
	At      *time.Time `json:"at,omitempty"` // nil: when it is written
	Relay   string     `json:"relay,omitempty"`
	Micros  int64      `json:"us,omitempty"` // of the handler's call
	Error   string     `json:"error,omitempty"`
	Reason  string     `json:"reason,omitempty"` // why the task was a dead letter then
	By      string     `json:"by,omitempty"`
	Last    *time.Time `json:"last,omitempty"` // of several in a row
	Times   int        `json:"times,omitempty"`
}

// The events.
const (
	Failed    = "failed"
	Throttled = "throttled"  // several in a row are one entry (add_events)
	Lost      = "lost"       // its process died
	LeaseLost = "lease_lost" // its lease ran out
	Dead      = "dead"       // without a call of the handler
	Redriven  = "redriven"
	Replaced  = "replaced" // by OnConflict(ConflictReplace): later events are of another payload
)

// Unreadable begins the last error of a task whose row PostgreSQL cannot read.
const Unreadable = "relay: the task cannot be read"

// Read returns the entries of a column.
func Read(column json.RawMessage) []Event {
	if len(column) == 0 { // as of most tasks, which allocate nothing
		return nil
	}
	var all []Event
	_ = json.Unmarshal(column, &all) // plain SQL may have written something else
	return all
}
