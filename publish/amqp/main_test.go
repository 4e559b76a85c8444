package outboxamqp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
	"github.com/txoutbox/outbox/internal/testing/devpg/watched"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// A relay process gets a URL, a space and an exchange.
func TestMain(m *testing.M) {
	forwardtest.Main(m, func(place string) (forward.Publisher, error) {
		url, exchange, _ := strings.Cut(place, " ")
		return outboxamqp.Open(url, outboxamqp.Config{Exchange: exchange})
	}, func() {
		if started != nil {
			started.close()
		}
	})
}

func connect(t testing.TB, url string, c outboxamqp.Config) *outboxamqp.Publisher {
	t.Helper()
	p, err := outboxamqp.Open(url, c)
	forwardtest.Must(t, err)
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
	return p
}

// channel is one of a connection of the test's own.
func channel(t testing.TB, r *rabbit) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(r.url())
	forwardtest.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	forwardtest.Must(t, err)
	return ch
}

// queue declares a durable queue with the test's name.
func queue(t testing.TB, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare(strings.ToLower(t.Name()), true, false, false, false, nil)
	forwardtest.Must(t, err)
	_, err = ch.QueuePurge(q.Name, false) // of what -count left
	forwardtest.Must(t, err)
	return q.Name
}

// fullQueue declares a queue that refuses all messages.
func fullQueue(t testing.TB, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare(strings.ToLower(t.Name())+"-full", true, false, false, false,
		amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	forwardtest.Must(t, err)
	return q.Name
}

// content takes all messages from a queue.
func content(t testing.TB, ch *amqp.Channel, queue string) (all []amqp.Delivery) {
	t.Helper()
	for {
		d, ok, err := ch.Get(queue, true)
		forwardtest.Must(t, err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// events are n events to a routing key, with the ids 0 and on and without ordering keys.
func events(n int, to string) (all []*forward.Event) {
	for i := range n {
		all = append(all, &forward.Event{ID: fmt.Sprint(i), Source: "/shop", Type: "order.placed", Time: time.Now(),
			To: to, Data: fmt.Appendf(nil, `{"n": %d}`, i), Attempt: 1})
	}
	return all
}

var within = forwardtest.Within

// leaves are functions of the goroutines that the first call of Publish starts.
var leaves = []string{"publish/amqp.(*conn).watch", "amqp091-go.(*Connection)"}

// place is an exchange and a queue on the broker, both with the test's name.
type place struct {
	t    testing.TB
	ch   *amqp.Channel
	name string
}

// declare makes both. The queue has the arguments.
func (p *place) declare(args amqp.Table) {
	p.t.Helper()
	_, err := p.ch.QueueDeclare(p.name, true, false, false, false, args)
	forwardtest.Must(p.t, err)
	forwardtest.Must(p.t, p.ch.ExchangeDeclare(p.name, amqp.ExchangeDirect, true, false, false, false, nil))
	forwardtest.Must(p.t, p.ch.QueueBind(p.name, "orders.eu", p.name, false, nil))
}

func (p *place) delete() {
	p.t.Helper()
	_, err := p.ch.QueueDelete(p.name, false, false, false)
	forwardtest.Must(p.t, err)
	forwardtest.Must(p.t, p.ch.ExchangeDelete(p.name, false, false))
}

func (p *place) received(t testing.TB, least int) (all []forwardtest.Received) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "the events", func() bool {
		for _, d := range content(t, p.ch, p.name) {
			got := forwardtest.Received{ID: d.MessageId, ContentType: d.ContentType, Data: d.Body,
				Headers: map[string]string{}}
			for name, value := range d.Headers {
				got.Headers[name], _ = value.(string)
			}
			got.Key = got.Headers["cloudEvents_partitionkey"]
			if d.DeliveryMode != amqp.Persistent || d.Type != got.Headers["cloudEvents_type"] || d.Timestamp.IsZero() {
				t.Errorf("the message is %+v", d)
			}
			all = append(all, got)
		}
		return len(all) >= least
	})
	return all
}

func TestAsAllPublishers(t *testing.T) {
	t.Parallel()
	r := broker(t)
	suite := forwardtest.Suite{
		New: func(t testing.TB) *forwardtest.Broker {
			at, proxy := &place{t, channel(t, r), t.Name()}, forwardtest.NewProxy(t, r.address())
			at.declare(nil)
			t.Cleanup(at.delete)
			url := strings.Replace(r.url(), r.address(), proxy.Address, 1)
			return &forwardtest.Broker{
				URL: url + " " + at.name, Of: at, To: "orders.eu", Received: at.received,
				Open: func(t testing.TB) forwardtest.Publisher {
					return connect(t, url, outboxamqp.Config{Exchange: at.name, Channels: 1})
				},
				Stop: proxy.Stop, Start: proxy.Start, Hold: proxy.Hold, Release: proxy.Release,
				LoseReplies: proxy.LoseReplies,
			}
		},
		Prefix: "cloudEvents_", Leaves: leaves,
		Refused: refused, Kills: true,
		Unready: map[string]func(*forward.Event){
			"unroutable":         func(e *forward.Event) { e.To = "nowhere" },
			"unroutable as well": func(e *forward.Event) { e.To = "nowhere" },
		},
		Mended: map[string]forwardtest.Mended{
			"no exchange": {Says: "no exchange", Break: func(_ testing.TB, of any) func() {
				of.(*place).delete()
				return func() { of.(*place).declare(nil) }
			}},
			"no queue": {Says: "unroutable", Break: func(t testing.TB, of any) func() {
				at := of.(*place)
				forwardtest.Must(t, at.ch.QueueUnbind(at.name, "orders.eu", at.name, nil))
				return func() { at.declare(nil) }
			}},
			"a full queue": {Says: "is full or failed", Break: func(_ testing.TB, of any) func() {
				at := of.(*place)
				at.delete()
				at.declare(amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
				return func() {
					at.delete()
					at.declare(nil)
				}
			}},
		},
	}
	suite.Run(t)
}

// mostBytes is the broker's max_message_size.
const mostBytes = 64 << 10

// rabbit is a RabbitMQ of the tests' own on the loopback interface. Its files are in a temporary
// directory, and it has an epmd of its own, which Erlang's nodes need.
type rabbit struct {
	dir, epmdDir *watched.Dir
	epmd, server *watched.Process
	program      string
	port         int
	env          []string
}

var (
	startOnce sync.Once
	started   *rabbit
	startErr  error
)

// broker is the package's RabbitMQ, which the first test starts.
func broker(t *testing.T) *rabbit {
	t.Helper()
	// Debian's program in /usr/sbin writes to /var/log.
	program := needs.Program(t, "rabbitmq-server", "/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
	epmd := needs.Program(t, "erlang-base", "epmd")
	startOnce.Do(func() { started, startErr = newRabbit(program, epmd) })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return started
}

func newRabbit(program, epmd string) (r *rabbit, err error) {
	r = &rabbit{program: program}
	defer func() {
		if err != nil {
			r.close()
			r = nil
		}
	}()
	if r.dir, err = watched.NewDir(true); err != nil {
		return r, err
	}
	if r.epmdDir, err = watched.NewDir(true); err != nil {
		return r, err
	}
	var ports [3]int
	for i := range ports {
		if ports[i], err = pgurl.FreePort(); err != nil {
			return r, err
		}
	}
	r.port = ports[0]
	for name, content := range map[string]string{
		".erlang.cookie": "outbox" + strconv.Itoa(os.Getpid()),
		"plugins":        "[].",
		"rabbitmq.conf": fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nmax_message_size = %d\n", r.port, mostBytes) +
			"log.console = true\nlog.console.level = warning\nlog.file = false\n" +
			// RabbitMQ 3.10 takes the one for the other.
			"default_permissions.configure = .*\ndefault_permissions.read = " +
			"^(?!forbidden).*\ndefault_permissions.write = ^(?!forbidden).*\n",
	} {
		if _, err = r.dir.WriteFile(name, content); err != nil {
			return r, err
		}
	}
	in := func(name string) string { return filepath.Join(r.dir.Path, name) }
	r.env = []string{
		"HOME=" + r.dir.Path, "RABBITMQ_NODENAME=outbox" + strconv.Itoa(ports[0]) + "@localhost",
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(ports[1]),
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(ports[2]),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"), "RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("plugins"), "RABBITMQ_CONF_ENV_FILE=" + in("none"),
		"RABBITMQ_ALLOW_INPUT=1", // the shell becomes the server, so that its number is the server's
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-noinput +S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
	}
	if r.epmd, err = r.epmdDir.Spawn(filepath.Join(r.epmdDir.Path, "output"), epmd, "-address", "127.0.0.1", "-port",
		strconv.Itoa(ports[2])); err != nil {
		return r, err
	}
	return r, r.start()
}

// start starts the broker on its port, with its data, and waits until it answers.
func (r *rabbit) start() (err error) {
	output := filepath.Join(r.dir.Path, "output")
	if r.server, err = r.dir.Spawn(output, "env", append(r.env, r.program)...); err != nil {
		return err
	}
	for deadline := time.After(2 * time.Minute); ; {
		c, err := amqp.Dial(r.url())
		if err == nil {
			return c.Close()
		}
		if ended := r.server.Ended(); ended != nil {
			err = ended
		} else {
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-deadline:
			}
		}
		said, _ := os.ReadFile(output)
		return fmt.Errorf("rabbitmq-server: %w\n%s", err, said)
	}
}

func (r *rabbit) close() {
	for _, p := range []*watched.Process{r.server, r.epmd} {
		if p != nil {
			p.Stop()
		}
	}
	for _, d := range []*watched.Dir{r.dir, r.epmdDir} {
		if d != nil {
			_ = d.Remove()
		}
	}
}

func (r *rabbit) address() string { return "127.0.0.1:" + strconv.Itoa(r.port) }
func (r *rabbit) url() string     { return "amqp://guest:guest@" + r.address() + "/" }

// ctl runs rabbitmqctl.
func (r *rabbit) ctl(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(r.program), "rabbitmqctl"), args...)
	cmd.Dir, cmd.Env = r.dir.Path, append(os.Environ(), r.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(errors.Join(err, errors.New(string(out))))
	}
}
