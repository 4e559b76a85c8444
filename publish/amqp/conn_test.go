package outboxamqp_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

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
	forwardtest.Must(t, errors.Join(p.Publish(within(t, time.Minute), events(1, q))...))
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
	forwardtest.Must(t, errors.Join(p.Publish(within(t, time.Minute), events(3, q))...))
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
	forwardtest.Must(t, errors.Join(p.Publish(within(t, time.Minute), events(1, q))...))
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
