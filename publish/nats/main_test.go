package outboxnats_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
)

func TestMain(m *testing.M) {
	forwardtest.Main(m, func(broker string) (forward.Publisher,
		error) {
		return outboxnats.Open(broker, outboxnats.Config{})
	})
}

func event(id string) *forward.Event { return forwardtest.Event(id, "orders.placed") }

// leaves are the client's goroutines that the first call of Publish starts.
var leaves = []string{"(*Conn).waitForMsgs", "resetPendingAcksOnReconnect"}

func leave(r *relaytest.Running) {
	for _, function := range leaves {
		r.Leaves(function)
	}
}

// broker is a NATS server with JetStream in this process, which keeps its port and its files.
type broker struct {
	t       testing.TB
	options server.Options
	s       *server.Server
}

func newBroker(t testing.TB, change func(*server.Options)) *broker {
	t.Helper()
	b := &broker{t: t, options: server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true}}
	if change != nil {
		change(&b.options)
	}
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
	c := jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.FileStorage,
		Duplicates: time.Hour}
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
		batch, err := c.Fetch(int(min(left-uint64(len(all)), 500)), jetstream.FetchMaxWait(time.Minute))
		forwardtest.Must(b.t, err)
		for m := range batch.Messages() {
			all = append(all, m)
		}
		forwardtest.Must(b.t, batch.Error())
	}
	return all
}

func (b *broker) received(testing.TB, int) (all []forwardtest.Received) {
	b.t.Helper()
	for _, m := range b.messages() {
		r := forwardtest.Received{Data: m.Data(), Headers: map[string]string{}}
		for name := range m.Headers() {
			r.Headers[name] = m.Headers().Get(name)
		}
		r.Key, r.ID, r.ContentType = r.Headers["ce-partitionkey"], r.Headers["Nats-Msg-Id"], r.Headers["Content-Type"]
		all = append(all, r)
	}
	return all
}

func connect(t testing.TB, url string) *outboxnats.Publisher {
	t.Helper()
	p, err := outboxnats.Open(url, outboxnats.Config{})
	forwardtest.Must(t, err)
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
	return p
}

func TestAsAllPublishers(t *testing.T) {
	t.Parallel()
	to := func(subject string) func(*forward.Event) { return func(e *forward.Event) { e.To = subject } }
	header := func(name, value string) func(*forward.Event) {
		return func(e *forward.Event) { e.Headers = map[string]string{name: value} }
	}
	pad := func(n int) func(*forward.Event) {
		return func(e *forward.Event) { e.Data = []byte(`"` + strings.Repeat("x", n) + `"`) }
	}
	suite := forwardtest.Suite{
		New: func(t testing.TB) *forwardtest.Broker {
			b := newBroker(t, func(o *server.Options) { o.MaxPayload = 100_000 })
			b.stream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 75_000 })
			proxy := forwardtest.NewProxy(t, strings.TrimPrefix(b.url(), "nats://"))
			return &forwardtest.Broker{
				URL: b.url(), Of: b, To: "orders.placed", Received: b.received, Stop: b.stop, Start: b.start,
				Open: func(t testing.TB) forwardtest.Publisher { return connect(t, "nats://"+proxy.Address) },
				Hold: proxy.Hold, Release: proxy.Release, LoseReplies: proxy.LoseReplies,
			}
		},
		Prefix: "ce-", Once: true, Kills: true, Leaves: leaves,
		Refused: map[string]func(*forward.Event){
			"too large for the server": pad(200_000), "too large for the stream": pad(80_000),
			"too long a subject": to("orders." + strings.Repeat("x", 5000)), "a line break": to("orders.x\ny"),
			"a space":    to("orders. placed"),
			"a wildcard": to("orders.*"), "an empty word": to("orders..placed"),
			"a header that is no token": header("trace id", "1"), "one with a colon": header("a:b", "1"),
			"one that is not ASCII": header("größe", "1"),
			"one without a name":    header("", "1"), "one with a line break": header("a", "1\r\nb: 2"),
			"headers of over 64 KiB": header("a", strings.Repeat("x", 70_000)),
		},
		Unready: map[string]func(*forward.Event){"no stream": to("nowhere")},
		Mended: map[string]forwardtest.Mended{
			"a stream": {Says: "no stream takes the subject", Break: func(t testing.TB, of any) func() {
				b := of.(*broker)
				forwardtest.Must(t, b.jetStream().DeleteStream(t.Context(), "ORDERS"))
				return func() { b.stream(nil) }
			}},
			"a full stream": {Says: "maximum messages exceeded", Break: func(_ testing.TB, of any) func() {
				b := of.(*broker)
				b.stream(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
				return func() { b.stream(nil) }
			}},
		},
	}
	suite.Run(t)
}
