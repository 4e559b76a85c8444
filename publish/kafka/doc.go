// Package outboxkafka publishes events to Kafka and brokers with its protocol, as a publisher of
// package forward.
//
//	import outboxkafka "github.com/txoutbox/outbox/publish/kafka"
//
//	publisher, err := outboxkafka.Open("kafka1:9092,kafka2:9092", outboxkafka.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// An event goes to the topic that forward.To names, which must exist. Its record has the ordering
// key as key, so that the events of a key share a partition; the attributes of CloudEvents as
// headers (ce_id, ce_type, …), and content-type application/json.
//
// The producer is idempotent and waits for all in-sync replicas (acks=all). An event may be in a
// topic twice all the same: when a relay dies before it records the acknowledgement. Its ce_source
// and ce_id are the same then; package inbox tells.
package outboxkafka
