package outboxamqp_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
	"github.com/txoutbox/outbox/relay"
)

// The broker is down when the app starts, and is killed twice while events are in flight. Each
// event arrives, those of a key in order, and no attempt is counted. It runs before the parallel
// tests.
func TestEventsOutliveTheBrokersRestarts(t *testing.T) {
	r := broker(t)
	q := queue(t, channel(t, r), nil)
	r.ctl(t, "stop_app") // a broker that is killed at once may forget the queue, which is not on disk yet
	r.kill()
	up := false
	defer func() {
		if !up {
			_ = r.start()
		}
	}()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	log := &relaytest.Records{}
	p := connect(t, r.url(), outboxamqp.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err := p.Ready(within(t, time.Minute)); err == nil {
		t.Error("Ready without a broker")
	}
	f := forward.Register(reg, forwardtest.Placed, p, forward.To(q), forward.BatchSize(3),
		forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	relayed := relaytest.Prepare(t, db.DB, reg, relay.Config{Workers: 3})
	for _, function := range leaves {
		relayed.Leaves(function)
	}
	relayed.Start()
	const parts, part, keys = 4, 125, 10
	for n := range parts {
		forwardtest.Enqueue(t, db, n*part, part, keys)
		switch n {
		case 0: // is down
		case parts - 1:
			continue
		default:
			before := f.Stats().Published
			relaytest.Eventually(t, time.Minute, "events are published",
				func() bool { return f.Stats().Published > before+part/5 })
			r.kill()
		}
		before := f.Stats().Unavailable
		if err := r.start(); err != nil { // takes seconds
			t.Fatal(err)
		}
		relaytest.Eventually(t, time.Minute, "the outage is noticed",
			func() bool { return f.Stats().Unavailable > before })
	}
	up = true
	db.Emptied(t, 2*time.Minute)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "500 1" {
		t.Errorf("done and attempts: %s, want 500 1", got)
	}
	if s := f.Stats(); s.Published != parts*part || s.Permanent+s.Temporary > 0 {
		t.Errorf("%+v", s)
	}
	var got []forwardtest.Received
	for _, d := range content(t, channel(t, r), q) {
		key, _ := d.Headers["cloudEvents_partitionkey"].(string)
		got = append(got, forwardtest.Received{ID: d.MessageId, Key: key, Data: d.Body})
	}
	forwardtest.Check(t, got, parts*part, keys, false) // some arrive again, as their confirms were lost
	if log.Count("connection lost") != 2 || strings.Contains(log.String(), "guest:guest") {
		t.Errorf("the log is\n%s", log.String())
	}
}

// A broker that is out of memory blocks publishers. It runs before the parallel tests.
func TestABlockedConnectionIsUnavailable(t *testing.T) {
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	p := connect(t, r.url(), outboxamqp.Config{})
	if errs := p.Publish(within(t, time.Minute), events(1, q)); errs != nil {
		t.Fatal(errs)
	}
	lift := sync.OnceFunc(func() { r.ctl(t, "set_vm_memory_high_watermark", "0.4") })
	defer lift()
	r.ctl(t, "set_vm_memory_high_watermark", "0.000001")
	for range 2 { // the first one meets connection.blocked on its way
		errs := p.Publish(within(t, time.Minute), events(3, q))
		for i, err := range errs {
			if _, away := forward.IsUnavailable(err); !away || !strings.Contains(err.Error(), "block") {
				t.Errorf("event %d: %v", i, err)
			}
		}
		if len(errs) != 3 {
			t.Errorf("%d errors", len(errs))
		}
	}
	if err := p.Ready(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("Ready: %v", err)
	}
	lift()
	relaytest.Eventually(t, time.Minute, "the connection is unblocked",
		func() bool { return p.Ready(within(t, time.Minute)) == nil })
	if errs := p.Publish(within(t, time.Minute), events(3, q)); errs != nil {
		t.Error(errs)
	}
}

// Writes that block hold up Publish for no longer than its context, though the library has none.
// Heartbeats would end the connection in the end, so there are none.
func TestWritesThatBlockEndWithTheContext(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r), nil)
	proxy := forwardtest.NewProxy(t, r.address())
	p := connect(t, strings.Replace(r.url(), r.address(), proxy.Address, 1)+"?heartbeat=0", outboxamqp.Config{})
	if errs := p.Publish(within(t, time.Minute), events(1, q)); errs != nil {
		t.Fatal(errs)
	}
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
