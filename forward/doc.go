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
//   - [Permanent]: it can never change, as with an event too large. The task is a dead letter at once.
//   - [TargetUnavailable]: the event's target takes nothing now, as a full queue. The attempt counts.
//     Other events for this target wait; those for other targets are sent.
//   - [Unavailable], or the end of the time limit: the broker cannot be reached. No attempt is
//     counted, and no event is sent for a while; where others pass, none for this target. An event that alone of its batch has no answer in
//     time counts an attempt the third time.
//   - any other error is the event's own: the task is retried as after any failed attempt.
//
// Where nothing passes, a circuit opens: of the target, or of the whole broker. Its pause is a second,
// then two, at most a minute. Then one call tries; of a target's events one is sent. A call that hangs
// is over with its time limit. Only open circuits are kept: those of 1,000 targets at most, each until
// ten minutes have passed without a try. Each process has its own.
//
// Events that wait come back at most 1,000 a second, and at most five minutes after the pause. Such an
// event says why in its last error. After three days each wait counts as an attempt. The relay's log has a warning when a circuit opens, and a record when it closes, of
// the first 20 that are open at once; [Forwarder.Health] names open ones.
//
// Events of one ordering key are published one after the other: the next one only after the
// acknowledgement of the last. A dead letter of a key does not hold up the key.
package forward
