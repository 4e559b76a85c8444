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
// confirmed. The other answers are:
//
//   - No queue is bound for the routing key: [forward.Permanent].
//   - The exchange does not exist, the user may not write to it, or the message is larger than
//     max_message_size: [forward.Permanent].
//   - The routing key, the type or the name of a header is over 255 bytes, or the headers do not
//     fit into one frame: [forward.Permanent], and nothing is sent.
//   - A queue is full and has overflow reject-publish, or its process failed: [forward.Unavailable].
//   - The broker is out of memory or disk and blocks the connection: [forward.Unavailable].
//   - The connection or the login fails, or no confirm comes in time: [forward.Unavailable].
//
// A refusal closes its channel, and the confirms of the events beside it are lost. These are
// published again, one by one, so some arrive twice: consumers tell by source and id (package
// inbox). The same holds for events whose connection was lost.
package outboxamqp
