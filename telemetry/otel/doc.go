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
// Where a task is enqueued without a span of its own, [Telemetry.TraceContext] is an option for
// Enqueue, and enough for the handler's spans. It is a module of its own, so that apps without it
// do not have OpenTelemetry among their dependencies.
package outboxotel
