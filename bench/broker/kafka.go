package broker

import (
	"context"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka starts a cluster that speaks Kafka's protocol, in this process and its memory.
func Kafka() (brokers string, stop func(), err error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, Topic))
	if err != nil {
		return "", nil, err
	}
	return strings.Join(c.ListenAddrs(), ","), c.Close, nil
}

// ToKafka publishes n records from memory, with the headers that ours have, and tells done of each
// that is acknowledged.
func ToKafka(ctx context.Context, brokers string, n int, payload string, done func(n int)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.DefaultProduceTopic(Topic))
	if err != nil {
		return err
	}
	defer client.Close()
	var once sync.Once
	var failed error
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		r := &kgo.Record{Value: []byte(payload),
			Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/json")}}}
		for _, h := range attributes(i) {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "ce_" + h[0], Value: []byte(h[1])})
		}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err == nil {
				done(1)
			} else if ctx.Err() == nil {
				once.Do(func() { failed = err })
			}
		})
	}
	if err := client.Flush(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return failed
}
