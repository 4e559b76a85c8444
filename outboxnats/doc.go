// Package outboxnats publishes events to NATS JetStream, as a publisher of package forward.
//
//	publisher, err := outboxnats.Connect("nats://localhost:4222", outboxnats.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.Source("/shop"), forward.To("orders.placed"))
//
// An event goes to the subject that forward.To names; a stream must take it. Its message has the
// attributes of CloudEvents as headers (ce-id, ce-type, …), the Content-Type application/json, and
// the Nats-Msg-Id source/id.
//
// JetStream stores a message once whose Nats-Msg-Id it has seen within the stream's duplicate
// window, by default two minutes. Choose a window that is longer than an outage of relays or
// network: then a consumer sees each event once, also those that were published again.
package outboxnats
