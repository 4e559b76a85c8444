// Package outboxnats publishes events to NATS JetStream, as a publisher of package forward.
//
//	publisher, err := outboxnats.Connect("nats://localhost:4222", outboxnats.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.Source("/shop"), forward.To("orders.placed"))
//
// An event goes to the subject that forward.To names; a stream must take it. Its message has the
// attributes of CloudEvents as headers (ce-id, ce-type, …), the Content-Type application/json, and
// the Nats-Msg-Id source/id, or source/id/target for a target of forward.Fanout.
//
// JetStream stores a message once whose Nats-Msg-Id it has seen within the stream's duplicate
// window, by default two minutes. Choose a window that is longer than relays or the network may be
// away. Of an event that is stored already the publisher looks at what is stored, if its login may
// (STREAM.INFO and STREAM.MSG.GET): where that is another event, as two databases have the same
// forward.Source, the attempt fails. A consumer still gets an event again that it did not acknowledge: package inbox tells.
package outboxnats
