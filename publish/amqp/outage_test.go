package outboxamqp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// The broker is down when the app starts, and is killed twice while events are in flight. Each event
// arrives, those of a key in order, and no attempt is counted. It runs before the parallel tests.
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
	f := forward.Register(reg, placed, p, forward.To(q), forward.BatchSize(3), forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	run(t, db, reg, 3)
	const parts, part, keys = 4, 125, 10
	for n := range parts {
		enqueue(t, db, n*part, (n+1)*part-1, keys)
		switch n {
		case 0: // is down
		case parts - 1:
			continue
		default:
			before := f.Stats().Published
			relaytest.Eventually(t, time.Minute, "events are published", func() bool { return f.Stats().Published > before+part/5 })
			r.kill()
		}
		before := f.Stats().Unavailable
		if err := r.start(); err != nil { // takes seconds
			t.Fatal(err)
		}
		relaytest.Eventually(t, time.Minute, "the outage is noticed", func() bool { return f.Stats().Unavailable > before })
	}
	up = true
	db.Emptied(t, 2*time.Minute)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "500 1" {
		t.Errorf("done and attempts: %s, want 500 1", got)
	}
	if s := f.Stats(); s.Published != parts*part || s.Permanent+s.Temporary > 0 {
		t.Errorf("%+v", s)
	}
	seen, last := map[int]bool{}, map[int]int{}
	for _, d := range content(t, channel(t, r), q) {
		var n int
		if _, err := fmt.Sscanf(string(d.Body), `{"n": %d}`, &n); err != nil {
			t.Fatal(err)
		}
		if seen[n] { // again, as its confirm was lost
			continue
		}
		if seen[n] = true; n >= keys && last[n%keys] != n-keys {
			t.Errorf("%d comes after %d of its key", n, last[n%keys])
		}
		last[n%keys] = n
	}
	if len(seen) != parts*part {
		t.Errorf("%d events arrived, want %d", len(seen), parts*part)
	}
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
	relaytest.Eventually(t, time.Minute, "the connection is unblocked", func() bool { return p.Ready(within(t, time.Minute)) == nil })
	if errs := p.Publish(within(t, time.Minute), events(3, q)); errs != nil {
		t.Error(errs)
	}
}

// A broker that reads nothing does not hold up Publish for longer than its context. Heartbeats would
// end the connection in the end, so there are none.
func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r), nil)
	s := newStaller(t, r.address())
	p := connect(t, strings.Replace(r.url(), r.address(), s.address(), 1)+"?heartbeat=0", outboxamqp.Config{})
	if errs := p.Publish(within(t, time.Minute), events(1, q)); errs != nil {
		t.Fatal(errs)
	}
	large := events(250, q)
	for _, e := range large {
		e.Data = bytes.Repeat([]byte("x"), mostBytes)
	}
	for name, all := range map[string][]*forward.Event{"confirms do not come": events(1, q), "writes block": large} {
		s.stall()
		answer := make(chan []error, 1)
		go func() { answer <- p.Publish(within(t, 200*time.Millisecond), all) }()
		var errs []error
		select {
		case errs = <-answer:
		case <-time.After(time.Minute):
			s.resume()
			t.Fatalf("%s: Publish does not end", name)
		}
		if len(errs) != len(all) {
			t.Fatalf("%s: %d errors", name, len(errs))
		}
		for i, err := range errs {
			if _, away := forward.IsUnavailable(err); !away || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: event %d: %v", name, i, err)
			}
		}
		s.resume()
		relaytest.Eventually(t, time.Minute, "it works again", func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
	}
}

func TestCloseWaitsForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r), nil)
	s := newStaller(t, r.address())
	p := connect(t, strings.Replace(r.url(), r.address(), s.address(), 1), outboxamqp.Config{Channels: 1})
	if errs := p.Publish(within(t, time.Minute), events(1, q)); errs != nil {
		t.Fatal(errs)
	}
	s.stall()
	published, closed := make(chan []error, 1), make(chan struct{})
	go func() { published <- p.Publish(within(t, time.Minute), events(1, q)) }()
	<-s.held // its message is on the way
	go func() {
		p.Close()
		close(closed)
	}()
	relaytest.Eventually(t, time.Minute, "later calls are refused", func() bool {
		errs := p.Publish(within(t, 10*time.Millisecond), events(1, q))
		return errs != nil && strings.Contains(errs[0].Error(), "is closed")
	})
	select {
	case <-closed:
		t.Error("Close did not wait")
	default:
	}
	s.resume()
	if errs := <-published; errs != nil {
		t.Error(errs)
	}
	<-closed
	p.Close()
	if err := p.Ready(within(t, time.Minute)); err == nil {
		t.Error("Ready after Close")
	}
}
