// Package outboxotel instruments the outbox with OpenTelemetry: the trace of the request that
// enqueued a task goes on in the task's handler, and the work of relays is measured.
//
//	import outboxotel "github.com/txoutbox/outbox/telemetry/otel"
//
//	tel, err := outboxotel.New(outboxotel.Config{DB: db})
//
//	// a span "send SEND_WELCOME", whose context travels with the task
//	_, err = tel.Enqueue(ctx, tx, SendWelcome.New(welcome))
//
//	// the spans "receive SEND_WELCOME" and "process SEND_WELCOME"
//	reg.Use(tel.Middleware())
//	r, err := relay.New(db, reg, relay.Config{Observers: []relay.Observer{tel.Observer()}})
//
// Names and attributes are those of the semantic conventions for messaging, version 1.30.0, which
// are under development: a task type is a destination, a task a message, and the system is
// "outbox". Names beyond the conventions begin with "outbox.".
//
// Beside those of the conventions there are these instruments, with their unit and, in braces, the
// attributes beyond messaging.destination.name, the type, which those of relays lack:
//
//   - outbox.task.wait, s: for how long tasks had been due when they were claimed
//   - outbox.task.runs{outbox.outcome}, {run}: ends of runs of tasks
//   - outbox.task.dead_letters{outbox.reason}, {task}: tasks that became dead letters
//   - outbox.relay.running, outbox.relay.outage, {relay}: relays of this process that run, and those
//     that cannot work with PostgreSQL
//   - outbox.tasks{outbox.state}, {task}: tasks of the database
//   - outbox.oldest_ready, s: for how long the ready task that has waited longest has been due
//   - outbox.tasks.finished, {task}, outbox.runs.failed, {run}: of all relays, since the counters began
//
// Spans of enqueues have outbox.outcome; those of claims and handlers outbox.kind, outbox.attempt
// and outbox.max_attempts, or of a batch its size; those of handlers that returned an error
// outbox.result, or of a batch outbox.failed_tasks.
//
// Where a task is enqueued without a span of its own, [Telemetry.TraceContext] is an option for
// Enqueue, and enough for the handler's spans. It is a module of its own, so that apps without it
// do not have OpenTelemetry among their dependencies.
package outboxotel
