package outboxwebhook

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	"golang.org/x/time/rate"
)

type order struct {
	N, Endpoint int
}

var placed = outbox.NewTaskType[order]("order.placed")

// deliveries are what endpoints have received: /0 and so on. Those below hanging answer when
// released.
type deliveries struct {
	hanging  int
	released chan struct{}
	open     atomic.Int64 // requests that hang
	mu       sync.Mutex
	got      map[string]int // by webhook-id
	byPath   map[string]int
}

func newDeliveries(hanging int) *deliveries {
	return &deliveries{hanging: hanging, released: make(chan struct{}), got: map[string]int{}, byPath: map[string]int{}}
}

func (d *deliveries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var n int
	fmt.Sscanf(r.URL.Path, "/%d", &n)
	if n < d.hanging {
		d.open.Add(1)
		defer d.open.Add(-1)
		select {
		case <-d.released:
		case <-r.Context().Done():
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got[r.Header.Get("webhook-id")]++
	d.byPath[r.URL.Path]++
}

// healthy is how many were delivered to the others.
func (d *deliveries) healthy() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, of := range d.byPath {
		var i int
		fmt.Sscanf(path, "/%d", &i)
		if i >= d.hanging {
			n += of
		}
	}
	return n
}

// deliver publishes so many events for each of 100 endpoints, and returns when the healthy ones
// have all of theirs.
func deliver(t *testing.T, db *relaytest.Database, d *deliveries, each int) (took time.Duration) {
	t.Helper()
	const endpoints = 100
	s := receiver(t, d.ServeHTTP)
	release := sync.OnceFunc(func() { close(d.released) })
	t.Cleanup(release) // before the server is closed, which waits for its handlers
	p := newPublisher(t, s, func(c *Config) { c.Timeout = 30 * time.Second })
	p.wait = defaultWait
	reg := handlers.New()
	forward.Register(reg, placed, p, forward.Route(func(e *forward.Event) (string, error) {
		var n, to int
		if _, err := fmt.Sscanf(string(e.Data), `{"N": %d, "Endpoint": %d}`, &n, &to); err != nil {
			return "", err
		}
		return fmt.Sprint(s.URL, "/", to), nil
	}), forward.Handler(handlers.Backoff(relaytest.Constant(time.Millisecond))))
	var tasks []outbox.NewTask
	for n := range each {
		for to := range endpoints {
			tasks = append(tasks, placed.New(order{n, to}))
		}
	}
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 4})
	r.Leaves("net/http.(*persistConn)")
	r.Leaves("publish/webhook.(*Publisher)")
	relaytest.Eventually(t, time.Minute, "the healthy endpoints to have all",
		func() bool { return d.healthy() >= each*(endpoints-d.hanging) })
	took = time.Since(began)
	if d.hanging > 0 && d.open.Load() == 0 {
		t.Error("no request hangs any more")
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	release()
	relaytest.Eventually(t, 2*time.Minute, "all to be delivered",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0 })
	r.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.got) != each*endpoints {
		t.Errorf("%d of %d events were delivered", len(d.got), each*endpoints)
	}
	for id, n := range d.got {
		if n != 1 {
			t.Errorf("event %s was delivered %d times", id, n)
		}
	}
	return took
}

// Five of a hundred endpoints hang. The others get all of their events meanwhile; those of the five
// are delivered once each when they answer.
func TestEndpointsThatHangDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	took := deliver(t, relaytest.NewDatabase(t), newDeliveries(5), 4)
	if os.Getenv("OUTBOX_TEST_TIMING") != "" {
		const each = 50
		with, without := deliver(t, relaytest.NewDatabase(t), newDeliveries(5), each),
			deliver(t, relaytest.NewDatabase(t), newDeliveries(0), each)
		ratio := (float64(each*95) / with.Seconds()) / (float64(each*100) / without.Seconds())
		t.Logf("a rate of %.2f of that without hanging endpoints", ratio)
		if ratio < 0.9 {
			t.Errorf("the others are slowed down to %.2f", ratio)
		}
	}
	t.Logf("took %v", took)
}

// An endpoint gets no more requests at once than Concurrency, and no more a second than Rate.
func TestTheLimitsOfAnEndpoint(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	s := receiver(t, func(http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
	})
	p := newPublisher(t, s, func(c *Config) { c.Concurrency = 2 })
	var events []*forward.Event
	for i := range 100 {
		events = append(events, event(fmt.Sprint(i), s.URL))
	}
	p.Publish(t.Context(), events)
	if m := most.Load(); m < 1 || m > 2 {
		t.Errorf("%d requests at once, want 2 at most", m)
	}
	slow := newPublisher(t, s, func(c *Config) { c.Rate = rate.Limit(1) })
	slow.wait = defaultWait
	for sent := 0; sent == 0; { // a busy machine may take longer than Publish waits
		for _, err := range slow.Publish(t.Context(), events) {
			if err == nil {
				sent++
			} else if handlers.ActionOf(err) != "snooze" {
				t.Errorf("beyond the rate: %v", err)
			}
		}
		if sent > 3 {
			t.Errorf("%d requests in about a second, want about one", sent)
		}
	}
}

// An endpoint with a rate that was slow once gets its events again.
func TestASlowEndpointWithARateIsServedAgain(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	s := receiver(t, func(http.ResponseWriter, *http.Request) { <-answer })
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	p := newPublisher(t, s, func(c *Config) { c.Rate, c.Timeout = 1000, time.Minute })
	p.wait = time.Millisecond
	publish := func() error { return p.Publish(t.Context(), []*forward.Event{event("1", s.URL)})[0] }
	if err := publish(); handlers.ActionOf(err) != "snooze" {
		t.Fatalf("a request that hangs: %v", err)
	}
	release()
	served := func(id string) bool {
		errs := p.Publish(t.Context(), []*forward.Event{event(id, s.URL)})
		return errs == nil
	}
	relaytest.Eventually(t, time.Minute, "the answer of the first", func() bool { return served("1") })
	relaytest.Eventually(t, time.Minute, "another event to be sent", func() bool { return served("2") })
}

// A function of the app that panics costs its event an attempt, and no more.
func TestAPanicOfTheAppIsAnError(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) {})
	calls := atomic.Int64{}
	p := newPublisher(t, s, func(c *Config) {
		c.Secrets = func(context.Context, string) ([]string, error) {
			switch calls.Add(1) {
			case 1:
				panic("the vault is closed")
			case 2:
				runtime.Goexit()
			}
			return []string{secretOne}, nil
		}
	})
	if err := one(t, p, event("1", s.URL)); err == nil || !strings.Contains(err.Error(), "the vault is closed") ||
		handlers.ActionOf(err) != "retry" {
		t.Errorf("a panic: %v", err)
	}
	if err := one(t, p, event("2", s.URL)); err == nil || handlers.ActionOf(err) != "retry" {
		t.Errorf("Goexit: %v", err)
	}
	if err := one(t, p, event("3", s.URL)); err != nil {
		t.Error(err)
	}
}

// What came of an attempt is not taken for what came of a later one.
func TestAnAttemptHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	status, arrived, answer := atomic.Int64{}, atomic.Int64{}, make(chan struct{})
	status.Store(500)
	s := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived.Add(1)
		<-answer
		w.WriteHeader(int(status.Load()))
	})
	p := newPublisher(t, s, nil)
	p.wait = time.Millisecond
	late := event("1", s.URL)
	relaytest.Eventually(t, time.Minute, "a request", func() bool {
		if err := one(t, p, late); handlers.ActionOf(err) != "snooze" {
			t.Fatalf("a request that hangs: %v", err)
		}
		return arrived.Load() > 0
	})
	close(answer)
	relaytest.Eventually(t, time.Minute, "the answer", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.late[lateKey(late)].done
	})
	p.wait = 20 * time.Second
	status.Store(200)
	next := *late
	next.Attempt = 2
	relaytest.Eventually(t, time.Minute, "the second attempt to be sent",
		func() bool { return one(t, p, &next) == nil })
	if err := one(t, p, late); err == nil || handlers.ActionOf(err) != "retry" {
		t.Errorf("the first attempt: %v, want its answer 500", err)
	}
}

func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")
	secretsOf := func(context.Context, string) ([]string, error) { return []string{os.Getenv("WEBHOOK_SECRET")}, nil }
	endpointOf := func(e *forward.Event) (string, error) { return "https://hooks.example.com/" + e.Key, nil }

	publisher, err := New(Config{Secrets: secretsOf})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.Route(endpointOf))
	// relay.New(db, reg, …) and Run
}
