package outboxamqp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// refused are changes of an event, by their names in docs/faults.md, which no retry makes good.
var refused = map[string]func(*forward.Event){
	"a message over max_message_size":       func(e *forward.Event) { e.Data = make([]byte, mostBytes+1) },
	"a header CC or BCC":                    func(e *forward.Event) { e.Headers = map[string]string{"CC": "x"} },
	"a routing key":                         func(e *forward.Event) { e.To = long },
	"type":                                  func(e *forward.Event) { e.Type = long },
	"id":                                    func(e *forward.Event) { e.ID = long },
	"or name of a header of over 255 bytes": func(e *forward.Event) { e.Headers = map[string]string{long: ""} },
	"headers that do not fit into a frame": func(e *forward.Event) {
		e.Headers = map[string]string{"x": strings.Repeat("x", 200_000)}
	},
}

var long = strings.Repeat("x", 256)

// docs/faults.md says of each answer of the broker whose fault it is.
func TestTheMapOfRabbitMQ(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	forwardtest.Must(t, ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil))
	by := func(ctx context.Context, p *outboxamqp.Publisher, to string) func() error {
		return func() error { return p.Publish(ctx, events(1, to))[0] }
	}
	ctx := within(t, time.Minute)
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	p := connect(t, r.url(), outboxamqp.Config{})
	down := connect(t, "amqp://guest:guest@127.0.0.1:1/", outboxamqp.Config{})
	closed := connect(t, r.url(), outboxamqp.Config{})
	closed.Close()
	made := map[string]func() error{
		"basic.nack of a full queue":      by(ctx, p, fullQueue(t, ch)),
		"basic.return: no queue takes it": by(ctx, p, "nowhere"),
		"404 no exchange":                 by(ctx, connect(t, r.url(), outboxamqp.Config{Exchange: "missing"}), q),
		"403 no right to write":           by(ctx, connect(t, r.url(), outboxamqp.Config{Exchange: "forbidden"}), q),
		"no connection":                   by(ctx, down, q),
		"a closed Publisher":              by(ctx, closed, q),
		"no confirm in time":              by(over, p, q),
		"any other code":                  func() error { return outboxamqp.Refused(closed, 599) },
	}
	for name, change := range refused {
		made[name] = func() error {
			e := events(1, q)[0]
			change(e)
			return p.Publish(ctx, []*forward.Event{e})[0]
		}
	}
	faultmap.Check(t, "RabbitMQ", forwardtest.Fault, made, func(name string) []error {
		code, err := strconv.Atoi(strings.TrimSuffix(name, " of the connection"))
		switch {
		case name == "a refused login", name == "connection.blocked": // have tests of their own
			return []error{down.Publish(ctx, events(1, q))[0]}
		case err != nil, strings.HasSuffix(name, " of the connection") != outboxamqp.EndsConnection(code):
			return nil
		}
		return []error{outboxamqp.Refused(closed, code)}
	})
}

// More events than may be in flight. A missing exchange is asked for once.
func TestManyEventsHaveAnAnswerEach(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	forwardtest.Must(t, ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil))
	for exchange, want := range map[string]string{"": "none", "missing": "the target's", "forbidden": "the target's"} {
		p := connect(t, r.url(), outboxamqp.Config{Exchange: exchange})
		errs := p.Publish(within(t, time.Minute), events(600, q))
		if want == "none" && errs == nil {
			errs = make([]error, 600)
		}
		if len(errs) != 600 {
			t.Fatalf("%s: %d errors", exchange, len(errs))
		}
		for i, err := range errs {
			if forwardtest.Fault(err) != want {
				t.Fatalf("%s: event %d: %v", exchange, i, err)
			}
		}
	}
	if got := content(t, ch, q); len(got) != 600 {
		t.Errorf("%d messages, want 600", len(got))
	}
}

// The broker closes the connection over one event. It counts an attempt, and its neighbours arrive.
func TestAnEventThatEndsTheConnectionIsAtFaultAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{Channels: 1,
		DialConfig: &amqp.Config{Dial: dialPoisoned(amqp.InternalError)}})
	all := events(20, q)
	all[5].Data = []byte(`"poison"`)
	errs := p.Publish(within(t, time.Minute), all)
	for i, err := range errs {
		want := "none"
		if i == 5 {
			want = "the event's"
		}
		if kind := forwardtest.Fault(err); kind != want {
			t.Errorf("event %d: %s, want %s: %v", i, kind, want, err)
		}
	}
	if len(errs) != len(all) {
		t.Errorf("%d errors", len(errs))
	}
	arrived := map[string]bool{}
	for _, d := range content(t, ch, q) {
		arrived[d.MessageId] = true
	}
	if len(arrived) != len(all)-1 {
		t.Errorf("%d events arrived", len(arrived))
	}
	for _, e := range all { // now it is no event's fault
		e.Data = []byte(`"poison"`)
	}
	kinds := map[string]int{}
	for _, err := range p.Publish(within(t, time.Minute), all) {
		kinds[forwardtest.Fault(err)]++
	}
	if kinds["the event's"] != 2 || kinds["the broker's"] != len(all)-2 {
		t.Errorf("of a connection that is always closed: %v", kinds)
	}
}

// changingLogin has the right password once it is told to.
type changingLogin struct{ right atomic.Bool }

func (*changingLogin) Mechanism() string { return "PLAIN" }

func (l *changingLogin) Response() string {
	if l.right.Load() {
		return "\x00guest\x00guest"
	}
	return "\x00guest\x00old"
}

// The app may use the parts of its configuration again.
func TestTheConfigurationIsThatOfOpen(t *testing.T) {
	t.Parallel()
	r, login := broker(t), &changingLogin{}
	login.right.Store(true)
	config := &amqp.Config{SASL: []amqp.Authentication{login}, Properties: amqp.Table{"product": "shop"}}
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: config})
	config.SASL[0], config.Properties["product"] = &changingLogin{}, struct{}{} // no value of AMQP
	forwardtest.Must(t, p.Ready(within(t, time.Minute)))
	if len(config.SASL) != 1 || len(config.Properties) != 1 {
		t.Errorf("the app's configuration became %+v", config)
	}
}

// A password that was changed is asked for at each login.
func TestARefusedLoginIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r))
	login := &changingLogin{}
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: &amqp.Config{SASL: []amqp.Authentication{login}}})
	for range 3 {
		errs := p.Publish(within(t, time.Minute), events(1, q))
		if forwardtest.Fault(errors.Join(errs...)) != "the broker's" || !strings.Contains(errs[0].Error(), "403") ||
			strings.Contains(errs[0].Error(), "guest:guest") {
			t.Errorf("%v", errs)
		}
	}
	login.right.Store(true)
	relaytest.Eventually(t, time.Minute, "a login",
		func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
}

// An event that is to be retried holds up its key, so that the order is kept. One that is refused
// for good does not.
func TestAFailedEventHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{})
	all := events(6, q)
	all[0].To, all[3].Data = fullQueue(t, ch), make([]byte, mostBytes+1)
	for i, key := range []string{"held", "other", "held", "refused", "refused", "held"} {
		all[i].OrderingKey = key
	}
	errs := p.Publish(within(t, time.Minute), all)
	if len(errs) != 6 {
		t.Fatalf("%d errors", len(errs))
	}
	for i, want := range map[int]string{0: "the target's", 2: "the broker's",
		5: "the broker's"} { // no attempt counts of what is not sent
		if kind := forwardtest.Fault(errs[i]); kind != want {
			t.Errorf("event %d: %s, want %s: %v", i, kind, want, errs[i])
		}
	}
	if !forward.IsPermanent(errs[3]) || errs[1] != nil || errs[4] != nil {
		t.Error(errs)
	}
	var ids []string
	for _, d := range content(t, ch, q) {
		ids = append(ids, d.MessageId)
	}
	if got := strings.Join(ids, " "); got != "1 4" {
		t.Errorf("arrived: %s", got)
	}
}

// poisoned is a connection that the broker closes with a code over each event whose data has the
// word poison.
type poisoned struct {
	net.Conn
	code   uint16
	said   *io.PipeReader // of the broker
	say    *io.PipeWriter
	copied chan struct{} // closed at the end of what the broker itself says
	closed atomic.Bool   // so nothing is written any more
}

// dialPoisoned is that of an amqp.Config.
func dialPoisoned(code uint16) func(network, address string) (net.Conn, error) {
	return func(network, address string) (net.Conn, error) {
		c, err := net.DialTimeout(network, address, time.Minute)
		if err != nil {
			return nil, err
		}
		p := &poisoned{Conn: c, code: code, copied: make(chan struct{})}
		p.said, p.say = io.Pipe()
		go func() {
			defer close(p.copied)
			_, _ = io.Copy(p.say, c)
		}()
		return p, nil
	}
}

func (p *poisoned) Write(b []byte) (int, error) {
	switch {
	case p.closed.Load():
		return len(b), nil
	case !bytes.Contains(b, []byte("poison")):
		return p.Conn.Write(b)
	}
	p.closed.Store(true)
	_ = p.Conn.Close()
	go func() {
		<-p.copied
		_, _ = p.say.Write(connectionClose(p.code))
	}()
	return len(b), nil
}

func (p *poisoned) Read(b []byte) (int, error)      { return p.said.Read(b) }
func (p *poisoned) SetReadDeadline(time.Time) error { return nil }

func (p *poisoned) Close() error {
	_ = p.say.Close()
	return p.Conn.Close()
}

// connectionClose is the frame of that method.
func connectionClose(code uint16) []byte {
	const reason = "POISONED"
	payload := binary.BigEndian.AppendUint16([]byte{0, 10, 0, 50}, code)
	payload = append(append(payload, byte(len(reason))), reason...)
	payload = append(payload, 0, 60, 0, 40) // basic.publish
	frame := binary.BigEndian.AppendUint32([]byte{1, 0, 0}, uint32(len(payload)))
	return append(append(frame, payload...), 0xCE)
}

// Events of other calls share the connection that an event ends, again and again. None of them is
// at fault.
func TestAnEventThatEndsTheConnectionUsesNoAttemptOfOtherCalls(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: &amqp.Config{Dial: dialPoisoned(amqp.InternalError)}})
	forwardtest.Ready(t, p)
	var calls sync.WaitGroup
	var blamed atomic.Int64
	for n := range 4 {
		calls.Go(func() {
			for round := range 25 {
				all := events(10, q)
				for _, e := range all {
					e.ID = fmt.Sprintf("%d-%d-%s", n, round, e.ID)
				}
				if n < 2 {
					all[3].Data = []byte(`"poison"`)
				}
				for i, err := range p.Publish(within(t, time.Minute), all) {
					switch fault := forwardtest.Fault(err); {
					case string(all[i].Data) != `"poison"` && fault != "none" && fault != "the broker's":
						t.Errorf("event %s: %s: %v", all[i].ID, fault, err)
					case fault == "the event's":
						blamed.Add(1)
					}
				}
			}
		})
	}
	calls.Wait()
	if n := blamed.Load(); n < 10 {
		t.Errorf("%d of 50 are at fault", n)
	}
}

func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	const good = "amqp://guest:secret@127.0.0.1:1/"
	for name, c := range map[string]struct {
		url, says string
		config    outboxamqp.Config
	}{
		"another scheme":  {"http://guest:secret@127.0.0.1/", "URL", outboxamqp.Config{}},
		"a bare password": {"amqp://guest:sec#ret@127.0.0.1/", "URL", outboxamqp.Config{}},
		"a space":         {"amqp://guest:secret @127.0.0.1/", "URL", outboxamqp.Config{}},
		"channels":        {good, "Config.Channels", outboxamqp.Config{Channels: -1}},
		"many channels":   {good, "Config.Channels", outboxamqp.Config{Channels: 1001}},
		"a long exchange": {good, "Config.Exchange", outboxamqp.Config{Exchange: strings.Repeat("x", 256)}},
		"recovery": {good, "Config.DialConfig.Recovery",
			outboxamqp.Config{DialConfig: &amqp.Config{Recovery: &amqp.Recovery{}}}},
	} {
		_, err := outboxamqp.Open(c.url, c.config)
		if err == nil || !strings.HasPrefix(err.Error(), "outboxamqp: ") || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The error says why there is no connection, without the password.
func TestABrokerThatCannotBeReachedIsUnavailable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	forwardtest.Must(t, err)
	defer silent.Close()
	refuse := func(string, string) (net.Conn, error) { return nil, errors.New("no way there") }
	for says, p := range map[string]*outboxamqp.Publisher{
		"deadline|timeout": connect(t, "amqp://guest:secret@"+silent.Addr().String()+"/?connection_timeout=20",
			outboxamqp.Config{}),
		"no way there": connect(t, "amqp://guest:secret@127.0.0.1:1",
			outboxamqp.Config{DialConfig: &amqp.Config{Dial: refuse}}),
	} {
		errs := append(p.Publish(within(t, time.Minute), events(2, "q")), p.Ready(within(t, time.Minute)))
		forwardtest.Unavailable(t, errs, 3)
		for _, err := range errs {
			if !regexp.MustCompile(says).MatchString(err.Error()) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %s", err, says)
			}
		}
	}
}

// A broker that is out of memory blocks publishers. It runs before the parallel tests.
func TestABlockedConnectionIsUnavailable(t *testing.T) {
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	log := &relaytest.Records{}
	p := connect(t, r.url(), outboxamqp.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	forwardtest.Publish(t, p, events(1, q)...)
	lift := sync.OnceFunc(func() { r.ctl(t, "set_vm_memory_high_watermark", "0.4") })
	defer lift()
	r.ctl(t, "set_vm_memory_high_watermark", "0.000001")
	for range 2 { // the first one meets connection.blocked on its way
		errs := p.Publish(within(t, time.Minute), events(3, q))
		forwardtest.Unavailable(t, errs, 3)
		if !strings.Contains(errs[0].Error(), "block") {
			t.Error(errs)
		}
	}
	if err := p.Ready(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("Ready: %v", err)
	}
	lift()
	relaytest.Eventually(t, time.Minute, "the connection is unblocked",
		func() bool { return p.Ready(within(t, time.Minute)) == nil })
	forwardtest.Publish(t, p, events(3, q)...)
	log.Want(t, 1, "connection blocked")
	log.Want(t, 0, "guest:guest")
}

// Writes that block hold up Publish for no longer than its context, though the library has none.
// Heartbeats would end the connection in the end, so there are none.
func TestWritesThatBlockEndWithTheContext(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r))
	proxy := forwardtest.NewProxy(t, r.address())
	p := connect(t, strings.Replace(r.url(), r.address(), proxy.Address, 1)+"?heartbeat=0", outboxamqp.Config{})
	forwardtest.Publish(t, p, events(1, q)...)
	large := events(250, q)
	for _, e := range large {
		e.Data = bytes.Repeat([]byte("x"), mostBytes)
	}
	proxy.Hold()
	answer := make(chan []error, 1)
	go func() { answer <- p.Publish(within(t, 200*time.Millisecond), large) }()
	select {
	case errs := <-answer:
		forwardtest.Unavailable(t, errs, len(large))
	case <-time.After(time.Minute):
		t.Error("Publish does not end")
	}
	proxy.Release()
	relaytest.Eventually(t, time.Minute, "it works again",
		func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
}
