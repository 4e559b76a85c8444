// Package outboxamqp publishes events to RabbitMQ, or another broker that speaks AMQP 0.9.1 and
// confirms what it publishes.
//
//	publisher, err := outboxamqp.Connect("amqp://guest:guest@localhost:5672/", outboxamqp.Config{})
//	defer publisher.Close()
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// An event's destination is its routing key. With the default exchange that is the name of a queue.
// Exchanges, queues and bindings are the app's to declare.
//
// A message is persistent and mandatory. Its properties are message_id (the event's source, a slash
// and its id), type, timestamp and content_type. Its headers are the CloudEvents attributes with the
// prefix "cloudEvents_", and the headers of the task.
//
// The broker confirms each message once its queues have it. An event is published if it is
// confirmed. What becomes of the others is in docs/faults.md: in short,
//
//   - too large a message, and a name that AMQP has no room for, are [forward.Permanent];
//   - a full queue, a routing key without a queue, and an exchange that is missing or may not be written
//     to are [forward.TargetUnavailable];
//   - a lost connection, a refused login, and a broker that blocks the connection for lack of memory or
//     disk are [forward.Unavailable].
//
// A refusal closes its channel, or the connection, and the confirms of the events beside it are lost.
// These are published again, one by one, so some arrive twice: consumers tell by source and id (package
// inbox). The same holds for events whose connection was lost.
package outboxamqp
