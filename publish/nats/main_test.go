package outboxnats_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
)

func TestMain(m *testing.M) {
	forwardtest.Main(m, func(broker string) (forward.Publisher, error) { return outboxnats.Connect(broker, outboxnats.Config{}) })
}

// broker is a NATS server with JetStream in this process, which keeps its port and its files.
type broker struct {
	t       *testing.T
	options server.Options
	s       *server.Server
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{t: t, options: server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	options := b.options
	s, err := server.NewServer(&options)
	forwardtest.Must(b.t, err)
	go s.Start()
	if !s.ReadyForConnections(time.Minute) {
		b.t.Fatal("the server does not start")
	}
	b.s, b.options.Port = s, s.Addr().(*net.TCPAddr).Port
}

func (b *broker) stop() {
	if b.s != nil {
		b.s.Shutdown()
		b.s.WaitForShutdown()
		b.s = nil
	}
}

func (b *broker) url() string { return "nats://127.0.0.1:" + strconv.Itoa(b.options.Port) }

// jetStream is a connection of the test's own.
func (b *broker) jetStream() jetstream.JetStream {
	b.t.Helper()
	conn, err := nats.Connect(b.url())
	forwardtest.Must(b.t, err)
	b.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	forwardtest.Must(b.t, err)
	return js
}

func (b *broker) stream(change func(*jetstream.StreamConfig)) jetstream.Stream {
	b.t.Helper()
	c := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage, Duplicates: time.Hour}
	if change != nil {
		change(&c)
	}
	s, err := b.jetStream().CreateOrUpdateStream(context.Background(), c)
	forwardtest.Must(b.t, err)
	return s
}

// messages are all that the stream has.
func (b *broker) messages() (all []jetstream.Msg) {
	b.t.Helper()
	ctx := context.Background()
	js := b.jetStream()
	s, err := js.Stream(ctx, "ORDERS")
	forwardtest.Must(b.t, err)
	left := s.CachedInfo().State.Msgs
	c, err := js.OrderedConsumer(ctx, "ORDERS", jetstream.OrderedConsumerConfig{})
	forwardtest.Must(b.t, err)
	for uint64(len(all)) < left {
		batch, err := c.Fetch(int(min(left-uint64(len(all)), 500)), jetstream.FetchMaxWait(10*time.Second))
		forwardtest.Must(b.t, err)
		for m := range batch.Messages() {
			all = append(all, m)
		}
		forwardtest.Must(b.t, batch.Error())
	}
	return all
}

func (b *broker) received() (all []forwardtest.Received) {
	b.t.Helper()
	for _, m := range b.messages() {
		all = append(all, forwardtest.Received{Key: m.Headers().Get("ce-partitionkey"), ID: m.Headers().Get("ce-id"), Data: m.Data()})
	}
	return all
}

func connect(t *testing.T, url string) *outboxnats.Publisher {
	t.Helper()
	p, err := outboxnats.Connect(url, outboxnats.Config{})
	forwardtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}
