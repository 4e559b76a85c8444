package outboxkafka_test

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
)

func TestMain(m *testing.M) {
	forwardtest.Main(m, func(broker string) (forward.Publisher, error) {
		return outboxkafka.Open(broker, outboxkafka.Config{})
	})
}

const topic = "orders"

func event(id string) *forward.Event { return forwardtest.Event(id, topic) }

// broker speaks Kafka's protocol in this process, and keeps its port and its data.
type broker struct {
	t    testing.TB
	port int
	dir  string
	*kfake.Cluster
}

func newBroker(t testing.TB) *broker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	forwardtest.Must(t, err)
	b := &broker{t: t, port: l.Addr().(*net.TCPAddr).Port, dir: t.TempDir()}
	forwardtest.Must(t, l.Close())
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	var err error
	b.Cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(b.port), kfake.DataDir(b.dir),
		kfake.SeedTopics(4, topic),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": "10000"}))
	forwardtest.Must(b.t, err)
}

func (b *broker) stop() {
	if b.Cluster != nil {
		b.Close()
		b.Cluster = nil
	}
}

func (b *broker) url() string { return "kafka://" + strings.Join(b.ListenAddrs(), ",") }

// received are the records of the topic: at least n, and those of a second more.
func (b *broker) received(t testing.TB, n int) (all []forwardtest.Received) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.ListenAddrs()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
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
			return all
		}
		for _, r := range fetches.Records() {
			got := forwardtest.Received{Key: string(r.Key), Data: r.Value, Headers: map[string]string{}}
			for _, h := range r.Headers {
				got.Headers[h.Key] = string(h.Value)
			}
			got.ID, got.ContentType = got.Headers["ce_id"], got.Headers["content-type"]
			if time.Since(r.Timestamp) > time.Hour { // by which Kafka deletes it
				t.Errorf("record %s has the time %v", got.ID, r.Timestamp)
			}
			all = append(all, got)
		}
	}
}

func connect(t testing.TB, url string) *outboxkafka.Publisher {
	t.Helper()
	p, err := outboxkafka.Open(url, outboxkafka.Config{})
	forwardtest.Must(t, err)
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
	return p
}

// answers has the broker answer all that is produced with an error, until mend.
func (b *broker) answers(err *kerr.Error) (mend func()) {
	return b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: -1}).Remove
}

// pad makes an event of n bytes of random text, as batches are compressed.
func pad(n int) func(*forward.Event) {
	text := make([]byte, n/2)
	for i := range text {
		text[i] = byte(rand.IntN(256))
	}
	return func(e *forward.Event) { e.Data = []byte(`"` + hex.EncodeToString(text) + `"`) }
}

func TestAsAllPublishers(t *testing.T) {
	t.Parallel()
	suite := forwardtest.Suite{
		New: func(t testing.TB) *forwardtest.Broker {
			b := newBroker(t)
			url, held, going := b.url(), make(chan struct{}, 1), make(chan struct{})
			return &forwardtest.Broker{
				URL: url, To: topic, Stop: b.stop, Start: b.start, Of: b,
				Open:     func(t testing.TB) forwardtest.Publisher { return connect(t, url) },
				Received: b.received,
				Hold: func() <-chan struct{} {
					b.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
						b.KeepControl()
						select {
						case held <- struct{}{}:
						default:
						}
						b.SleepControl(func() { <-going })
						return nil, nil, false
					})
					return held
				},
				Release: func() { close(going) },
				LoseReplies: func() (restore func()) {
					first := true
					b.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
						if !first {
							return nil, nil, false
						}
						first = false
						b.KeepControl()
						return nil, errors.New("the connection breaks"), true
					})
					return func() {}
				},
			}
		},
		Prefix: "ce_",
		Kills:  true,
		Refused: map[string]func(*forward.Event){
			"too large for the client": pad(2_000_000),
			"too large for the broker": pad(20_000),
		},
		Unready: map[string]func(*forward.Event){"no such topic": func(e *forward.Event) { e.To = "nowhere" }},
		Mended: map[string]forwardtest.Mended{
			"a topic": {Break: func(t testing.TB, of any) func() {
				b := of.(*broker)
				forwardtest.Must(t, b.DeleteTopic(topic))
				return func() { forwardtest.Must(t, b.CreateTopic(topic, 4, nil)) }
			}},
			"a right": {Break: func(_ testing.TB,
				of any) func() {
				return of.(*broker).answers(kerr.TopicAuthorizationFailed)
			}},
			"a full disk": {Break: func(_ testing.TB,
				of any) func() {
				return of.(*broker).answers(kerr.KafkaStorageError)
			}},
		},
	}
	suite.Run(t)
}

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "kafka://", "localhost", "localhost:9092,", ":9092", "localhost:9092, ", "a:9092 b:9092", "local host:9092"} {
		if p, err := outboxkafka.Open(url, outboxkafka.Config{}); err == nil {
			p.Close()
			t.Errorf("%q connects", url)
		}
	}
}

// A list as in a configuration file, of which one broker answers.
func TestSpacesBetweenBrokersDoNotMatter(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	p := connect(t, " kafka://127.0.0.1:1 ,\t"+b.ListenAddrs()[0]+"\n")
	forwardtest.Ready(t, p)
	forwardtest.Publish(t, p, event("1"))
}

func TestAWrongConfigIsRefused(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient()
	forwardtest.Must(t, err)
	defer client.Close()
	_, noOption := outboxkafka.Open("localhost:9092", outboxkafka.Config{Options: []kgo.Opt{kgo.SeedBrokers(), nil}})
	_, noClient := outboxkafka.New(nil, outboxkafka.Config{})
	_, options := outboxkafka.New(client, outboxkafka.Config{Options: []kgo.Opt{kgo.SeedBrokers()}})
	forwardtest.WantErrors(t, map[string]error{"Config.Options: 1 is nil": noOption, "the client is nil": noClient,
		"Config.Options: they are for Open": options})
}
