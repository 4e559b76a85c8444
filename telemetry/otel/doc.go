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
// These instruments are not in the conventions. All but those of relays have the type as
// messaging.destination.name. The unit is in brackets, with further attributes behind it.
//
//   - outbox.task.wait (s): for how long tasks had been due when they were claimed
//   - outbox.task.runs ({run}; outbox.outcome): ends of runs of tasks
//   - outbox.task.dead_letters ({task}; outbox.reason): tasks that became dead letters
//   - outbox.relay.running, outbox.relay.outage, outbox.relay.refused ({relay}): relays of this
//     process that run, those of them that cannot work with PostgreSQL until it is back, and those
//     that lack a right or an object
//   - outbox.tasks ({task}; outbox.state): tasks in the database
//   - outbox.oldest_ready (s): for how long the ready task that has waited longest has been due
//   - outbox.tasks.finished ({task}), outbox.runs.failed ({run}): of all relays, since the counters
//     began
//
// Spans of an enqueue of one task have outbox.outcome. Those of claims and handlers have
// outbox.kind, and of one task outbox.attempt and outbox.max_attempts. If the handler returned an
// error, its span has outbox.result, or for a handlers.BatchResult the number of
// outbox.failed_tasks.
//
// Where a task is enqueued without a span of its own, [Telemetry.TraceContext] is an option for
// Enqueue, and enough for the handler's spans.
//
// The package is a module of its own, so that apps without it do not depend on OpenTelemetry.
package outboxotel
