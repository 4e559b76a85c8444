// Package copied is how package forward enqueues the copies of a task: with control data that no
// app may give, and without the limits of an app's tasks, which the task itself has met or which
// SQL went around.
package copied

import "encoding/json"

// Task is the payload of an outbox.NewTask that is a copy. The other fields take the place of
// options.
type Task struct {
	Payload     json.RawMessage // as PostgreSQL prints jsonb
	Headers     map[string]string
	Priority    int
	OrderingKey string // "" for none
}

// Headers of a copy: the id and the time of the task that was copied.
const (
	EventID   = "outbox-event-id"
	EventTime = "outbox-event-time"
)

// Prefix is that of the names that are the library's, in any case of their letters.
const Prefix = "outbox-"
