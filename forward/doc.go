// Package forward publishes tasks as events: to Kafka, NATS JetStream, RabbitMQ, webhooks, or
// whatever else has a [Publisher]. An app enqueues an event in the transaction of its business
// rows; relays publish it after the commit, at least once.
//
//	var OrderPlaced = outbox.NewTaskType[Order]("order.placed")
//
//	forward.Register(reg, OrderPlaced, publisher, forward.Source("/orders"))
//
// Publishers are modules of their own: outboxkafka, outboxnats, outboxamqp, outboxwebhook and
// outboxwatermill.
//
// An event follows CloudEvents 1.0 in binary mode: the task's payload is the body, the attributes
// are headers. Its id is the same in every attempt, so a consumer can tell a repetition: package
// inbox does.
//
// What becomes of an event depends on the publisher's error:
//
//   - nil: the broker has it. The task is done.
//   - [Permanent]: no retry can help, as with an event too large or a topic that does not exist. The
//     task is a dead letter at once.
//   - [Unavailable], or the end of the time limit: the broker cannot be reached. No attempt is
//     counted; the type pauses, for longer each time, up to a minute. Then one batch tries again.
//     An event that alone of its batch has no answer in time counts an attempt the third time.
//   - any other error: the task is retried as after any failed attempt.
//
// Events of one ordering key are published one after the other: the next one only after the
// acknowledgement of the last. A dead letter of a key does not hold up the key.
package forward
