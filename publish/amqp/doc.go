// Package outboxamqp publishes events to RabbitMQ, or another broker of AMQP 0.9.1 with publisher
// confirms.
//
//	import outboxamqp "github.com/txoutbox/outbox/publish/amqp"
//
//	publisher, err := outboxamqp.Open("amqp://guest:guest@localhost:5672/", outboxamqp.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// An event's To is its routing key. With the default exchange that is the name of a queue.
// Exchanges, queues and bindings are the app's to declare.
//
// A message is persistent and mandatory. Its properties are message_id (the event's id), type,
// timestamp and content_type. Its headers are the CloudEvents attributes with the prefix
// "cloudEvents_", and the headers of the task.
//
// The broker confirms each message once its queues have it. An event is published if it is
// confirmed. docs/faults.md has the errors of the others. In short:
//
//   - [forward.Permanent]: the message is too large, or a name is too long for AMQP.
//   - [forward.TargetUnavailable]: the queue is full, no queue takes the routing key, or the
//     exchange is missing or not writable.
//   - [forward.Unavailable]: the connection is lost, the login is refused, or the broker blocks the
//     connection for lack of memory or disk.
//
// A refusal closes the channel or the connection, and the confirms of events in flight are lost.
// These are published again, one by one, so some arrive twice. The same holds after a lost
// connection. Consumers tell by source and id (package inbox).
package outboxamqp
