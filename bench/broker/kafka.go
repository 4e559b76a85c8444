package broker

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka starts a cluster that speaks Kafka's protocol, in this process and its memory.
func Kafka(context.Context) (brokers string, stop func(), err error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, Topic))
	if err != nil {
		return "", nil, err
	}
	return strings.Join(c.ListenAddrs(), ","), c.Close, nil
}
