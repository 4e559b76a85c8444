// Package copied is how package forward enqueues the copies of a task: with control data that no
// app may give, and without the limits of an app's tasks, which the task itself has met or which
// SQL went around.
package copied

// Task is the payload of an outbox.TaskSpec that is a copy. The options of Of, which has the headers
// of the copy, and its payload take the place of the copy's own.
type Task[T any] struct{ Of *T }

// Headers of a copy: the id and the time of the task that was copied.
const (
	EventID   = "outbox-event-id"
	EventTime = "outbox-event-time"
)

// Prefix is that of the names that are the library's, in any case of their letters.
const Prefix = "outbox-"
