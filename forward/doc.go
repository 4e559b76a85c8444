// Package forward publishes tasks as events: to Kafka, NATS JetStream, RabbitMQ, webhooks, or
// another [Publisher]. An app enqueues an event in the transaction of its business
// rows; relays publish it after the commit, at least once.
//
//	var OrderPlaced = outbox.NewTaskType[Order]("order.placed")
//
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// Publishers are modules of their own: publish/kafka, publish/nats, publish/amqp, publish/webhook
// and publish/watermill. Close one after the Run of the relays has returned.
//
// An event follows CloudEvents 1.0 in binary mode: the task's payload is the body, the attributes
// are headers. Its id is the task's key, a UUID that is the same in every attempt and no other
// event's, so a consumer can tell a repetition: package inbox does.
//
// The error of the publisher decides on the event. A target here is an [Event.To]: a topic, a
// queue, a URL.
//
//   - nil: the broker has it. The task is done.
//   - [Permanent]: a retry cannot help, as with an event too large. The task is a dead letter at
//     once.
//   - [TargetUnavailable]: the event's target takes nothing now, as a full queue. The attempt
//     counts, unless the target says for how long to wait. Other events for this target wait; those
//     for other targets are sent.
//   - handlers.RetryAfter or Snooze: the event is sent again after that time. For the first three
//     days this counts no attempt.
//   - [Unavailable], or the end of the time limit: the broker cannot be reached. No attempt is
//     counted, and no event is sent for a while. If events for other targets pass, only those for
//     this target wait. If an event has no answer in time while others have one, every third such
//     time is an attempt.
//   - any other error is the event's own: the task is retried as after any failed attempt.
//
// Of several marks on one error, Permanent goes before TargetUnavailable, and that before
// Unavailable.
//
// If no event passes, a circuit breaker opens: of the target, or of the whole broker. No event is
// sent during its pause: a second, then two, at most a minute. Then one call, or one event of a
// target, is the trial. The time limit ends a trial that hangs. Each Forwarder of a process has its
// own circuits, of 1,000 targets at most. It forgets a circuit without a trial for ten minutes.
//
// Events that wait come back at most 1,000 a second, and at most five minutes after the pause. Such
// an event has the reason in its last error. After three days each wait counts as an attempt.
//
// The relay logs a warning when a circuit opens, and a record when it closes, for the first 20 that
// are open at once. [Forwarder.Health] names the open ones.
//
// Events of one ordering key are published one after the other: the next one only after the
// acknowledgement of the last. A dead letter of a key does not hold up the key.
package forward
