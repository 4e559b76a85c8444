package outboxamqp_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

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
