package outboxkafka_test

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
)

func TestMain(m *testing.M) {
	forwardtest.Main(m, func(broker string) (forward.Publisher, error) {
		return outboxkafka.Connect(broker, outboxkafka.Config{})
	})
}

const topic = "orders"

// broker speaks Kafka's protocol in this process, and keeps its port and its data.
type broker struct {
	t       *testing.T
	port    int
	dir     string
	configs map[string]string
	*kfake.Cluster
}

func newBroker(t *testing.T, configs map[string]string) *broker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	forwardtest.Must(t, err)
	b := &broker{t: t, port: l.Addr().(*net.TCPAddr).Port, dir: t.TempDir(), configs: configs}
	forwardtest.Must(t, l.Close())
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	var err error
	b.Cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(b.port), kfake.DataDir(b.dir), kfake.SeedTopics(4, topic), kfake.BrokerConfigs(b.configs))
	forwardtest.Must(b.t, err)
}

func (b *broker) stop() {
	if b.Cluster != nil {
		b.Close()
		b.Cluster = nil
	}
}

func (b *broker) url() string { return "kafka://" + strings.Join(b.ListenAddrs(), ",") }

// variable names a real broker for the test of arrival.
const variable = "OUTBOX_TEST_KAFKA"

// realTopic is the address of a real broker and a new topic on it; "" if none is named.
func realTopic(t *testing.T) (address, name string) {
	address = os.Getenv(variable)
	if address == "" {
		return "", ""
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(address, ",")...))
	forwardtest.Must(t, err)
	defer client.Close()
	name = "outbox-test-" + time.Now().UTC().Format("20060102-150405.000000")
	create, t1 := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
	t1.Topic, t1.NumPartitions, t1.ReplicationFactor = name, 4, 1
	create.Topics = append(create.Topics, t1)
	_, err = create.RequestWith(t.Context(), client)
	forwardtest.Must(t, err)
	return address, name
}

// records are those of a topic: at least n, and what has come within a second more.
func records(t *testing.T, address, topic string, n int) (all []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(address, "kafka://"), ",")...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	forwardtest.Must(t, err)
	defer client.Close()
	for {
		within := time.Minute
		if len(all) >= n {
			within = time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), within)
		fetches := client.PollFetches(ctx)
		cancel()
		if fetches.Empty() {
			if len(all) < n {
				t.Errorf("%d of %d records arrived", len(all), n)
			}
			return all
		}
		all = append(all, fetches.Records()...)
	}
}

func received(t *testing.T, b *broker, n int) (all []forwardtest.Received) {
	t.Helper()
	for _, r := range records(t, b.url(), topic, n) {
		all = append(all, forwardtest.Received{Key: string(r.Key), ID: header(r, "ce_id"), Data: r.Value})
	}
	return all
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func connect(t *testing.T, url string) *outboxkafka.Publisher {
	t.Helper()
	p, err := outboxkafka.Connect(url, outboxkafka.Config{})
	forwardtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}
