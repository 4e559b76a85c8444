// Package outboxwatermill publishes events through any publisher of Watermill
// (github.com/ThreeDotsLabs/watermill): its Pub/Subs for brokers, HTTP, SQL or Go channels.
//
//	import outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
//
//	publisher, err := outboxwatermill.New(kafkaPublisher, outboxwatermill.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// Each event is one message. Its topic is the event's To, its payload the event's data.
// Its UUID is the event's id, the same in every attempt. Its metadata are the CloudEvents
// attributes with the prefix "ce_", the headers of the task, content_type, and the ordering key as
// partition_key.
//
// An event counts as published when Watermill's Publish returns nil. With an asynchronous
// publisher, or a Go channel without subscribers, that is before anybody has it: choose one that
// waits for the broker.
//
// Watermill gives one error for all messages of a call, and does not say which were published.
// After an error that Config.Classify does not mark as the topic's or the broker's, the events of
// the topic go one by one, so only the one at fault fails. Some arrive twice. Consumers tell by
// source and id (package inbox).
//
// The topics of a call are published at once, so one that hangs holds up no other.
//
// Watermill does not classify its errors, so each counts as an attempt. An outage that
// outlasts the attempts makes dead letters, unless Config.Classify marks its errors
// [forward.Unavailable].
package outboxwatermill
