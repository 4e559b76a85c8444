// Package outboxnats publishes events to NATS JetStream, as a publisher of package forward.
//
//	import outboxnats "github.com/txoutbox/outbox/publish/nats"
//
//	publisher, err := outboxnats.Open("nats://localhost:4222", outboxnats.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders.placed"))
//
// An event goes to the subject that forward.To names; a stream must take it. Its message has the
// attributes of CloudEvents as headers (ce-id, ce-type, …), the Content-Type application/json, and
// the event's id as Nats-Msg-Id, or id/target for a target of forward.Fanout.
//
// JetStream stores a message once whose Nats-Msg-Id it has seen within the stream's duplicate
// window, by default two minutes. Choose a window that is longer than relays or the network may be
// away. If the stream has the Nats-Msg-Id already, the publisher reads the stored message. Its
// login needs STREAM.INFO and STREAM.MSG.GET for that. If the message is another event, the attempt
// fails: a copy of the database publishes, or the database was restored. See `outbox adopt`.
//
// JetStream delivers an event again that a consumer did not acknowledge: use package inbox.
package outboxnats
