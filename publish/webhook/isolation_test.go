package outboxwebhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Five of a hundred endpoints hang. The others get all of their events meanwhile; those of the five
// are delivered once each when they answer.
func TestEndpointsThatHangDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	const endpoints, hanging, each = 100, 5, 4
	var open, healthy atomic.Int64
	var got sync.Map // a *atomic.Int64 by webhook-id
	released := make(chan struct{})
	s := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		if n, _ := strconv.Atoi(r.URL.Path[1:]); n < hanging {
			open.Add(1)
			defer open.Add(-1)
			select {
			case <-released:
			case <-r.Context().Done():
				return
			}
		} else {
			healthy.Add(1)
		}
		n, _ := got.LoadOrStore(r.Header.Get("webhook-id"), &atomic.Int64{})
		n.(*atomic.Int64).Add(1)
	})
	release := sync.OnceFunc(func() { close(released) })
	t.Cleanup(release) // before the server is closed, which waits for its handlers
	p := newPublisher(t, s, func(c *Config) { c.Timeout = 30 * time.Second })
	p.wait = defaultWait
	db, reg := relaytest.NewDatabase(t), handlers.New()
	forward.Register(reg, forwardtest.Placed, p, forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
		return s.URL + "/" + strings.TrimPrefix(e.OrderingKey, "key "), nil
	}), forward.HandlerOptions(relaytest.RetrySoon()))
	forwardtest.Enqueue(t, db, 0, each*endpoints, endpoints)
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 4})
	r.Leaves("net/http.(*persistConn)")
	r.Leaves("publish/webhook.(*Publisher)")
	relaytest.Eventually(t, time.Minute, "the healthy endpoints to have all",
		func() bool { return healthy.Load() >= each*(endpoints-hanging) })
	if open.Load() == 0 {
		t.Error("no request hangs any more")
	}
	release()
	forwardtest.NothingLeft(t, db)
	r.Stop()
	events := 0
	got.Range(func(id, n any) bool {
		if events++; n.(*atomic.Int64).Load() != 1 {
			t.Errorf("event %s was delivered %d times", id, n.(*atomic.Int64).Load())
		}
		return true
	})
	if events != each*endpoints {
		t.Errorf("%d of %d events were delivered", events, each*endpoints)
	}
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
	slow := newPublisher(t, s, func(c *Config) { c.Rate = 1 })
	slow.wait = defaultWait
	for sent := 0; sent == 0; { // a busy machine may take longer than Publish waits
		for _, err := range slow.Publish(t.Context(), events) {
			if err == nil {
				sent++
			} else if handlers.ActionOf(err) != handlers.ActionSnooze {
				t.Errorf("beyond the rate: %v", err)
			}
		}
		if sent > 3 {
			t.Errorf("%d requests in about a second, want about one", sent)
		}
	}
}

func TestARateIsSpreadOverItsTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n, burst int
		per      time.Duration
		limit    float64 // a second
	}{{5, 5, 0, 5}, {120, 2, time.Minute, 2}, {36, 1, time.Hour, 0.01}, {1000, 10, time.Second, 1000}} {
		p, err := New(Config{Unsigned: true, Rate: c.n, RatePer: c.per})
		relaytest.Must(err)
		if l := p.config.newEndpoint().limiter; float64(l.Limit()) != c.limit || l.Burst() != c.burst {
			t.Errorf("%d in %v: %v a second, %d at once", c.n, c.per, l.Limit(), l.Burst())
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
	publish := func(id string) error { return one(t, p, event(id, s.URL)) }
	if err := publish("1"); handlers.ActionOf(err) != handlers.ActionSnooze {
		t.Fatalf("a request that hangs: %v", err)
	}
	release()
	relaytest.Eventually(t, time.Minute, "the answer of the first", func() bool { return publish("1") == nil })
	relaytest.Eventually(t, time.Minute, "another event to be sent", func() bool { return publish("2") == nil })
}

// A function of the app that panics or ends its goroutine costs its event an attempt, and no more.
func TestAPanicOfTheAppIsAnError(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) {})
	for says, misbehave := range map[string]func(){"the vault is closed": func() { panic("the vault is closed") },
		"ended the goroutine": runtime.Goexit} {
		p := newPublisher(t, s, func(c *Config) {
			c.Secrets = func(context.Context, *forward.Event) ([]string, error) { misbehave(); return nil, nil }
		})
		err := one(t, p, event("1", s.URL))
		if handlers.ActionOf(err) != handlers.ActionRetry || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want a retry: %s", err, says)
		}
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
		if err := one(t, p, late); handlers.ActionOf(err) != handlers.ActionSnooze {
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
	p.wait = time.Minute
	status.Store(200)
	next := *late
	next.Attempt = 2
	relaytest.Eventually(t, time.Minute, "the second attempt to be sent",
		func() bool { return one(t, p, &next) == nil })
	if err := one(t, p, late); err == nil || handlers.ActionOf(err) != handlers.ActionRetry {
		t.Errorf("the first attempt: %v, want its answer 500", err)
	}
}

// kindOf is the mark of an error, as docs/faults.md names it.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "none"
	case forward.IsPermanent(err):
		return "the event's, for good"
	case forward.IsUnavailable(err):
		return "the publisher's"
	case handlers.ActionOf(err) == handlers.ActionRetryAfter:
		return "the endpoint's, which asks to wait"
	case handlers.ActionOf(err) == handlers.ActionSnooze:
		return "the endpoint's, for other events"
	}
	return "the endpoint's"
}

// docs/faults.md says of each answer whose fault it is.
func TestTheMapOfWebhooks(t *testing.T) {
	t.Parallel()
	answer := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		code, after, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if after != "" {
			w.Header().Set("Retry-After", "60")
		}
		status, err := strconv.Atoi(code)
		if err != nil {
			panic(http.ErrAbortHandler) // closes the connection
		}
		w.WriteHeader(status)
	})
	down := receiver(t, nil)
	down.Close()
	p := newPublisher(t, answer, nil)
	to := func(url string) func() error { return func() error { return one(t, p, event("1", url)) } }
	made := map[string]func() error{
		"410":                      to(answer.URL + "/410"),
		"429 with Retry-After":     to(answer.URL + "/429/first"),
		"503 with Retry-After":     to(answer.URL + "/503/first"),
		"a URL that is not valid":  to("ftp://example.com"),
		"a refused address":        to("https://10.0.0.1"),
		"no connection":            to(down.URL),
		"a connection that breaks": to(answer.URL + "/broken"),
		"a name that is not known": to("https://unknown.invalid"),
		"a name whose addresses are all refused": func() error {
			p := newPublisher(t, answer, nil)
			resolver, _ := nameServer(t, "10.0.0.1")
			p.client = p.config.client(resolver)
			return one(t, p, event("1", "https://hook.example.org"))
		},
		"a certificate that is not valid": func() error {
			p := newPublisher(t, nil, nil)
			return one(t, p, event("1", answer.URL+"/200"))
		},
		"an error of Config.Secrets": func() error {
			p := newPublisher(t, answer, func(c *Config) {
				c.Secrets = func(context.Context, *forward.Event) ([]string, error) {
					return nil,
						errors.New("the vault is closed")
				}
			})
			return one(t, p, event("1", answer.URL+"/200"))
		},
		"no answer within Config.Timeout": func() error {
			hang := make(chan struct{})
			s := receiver(t, func(http.ResponseWriter, *http.Request) { <-hang })
			t.Cleanup(func() { close(hang) })
			return one(t, newPublisher(t, s, func(c *Config) { c.Timeout = time.Millisecond }), event("1", s.URL))
		},
		"an endpoint that rests after Retry-After": func() error {
			_ = one(t, p, event("1", answer.URL+"/429/after"))
			return one(t, p, event("2", answer.URL+"/429/after"))
		},
		"an endpoint that has answered 410": func() error { return one(t, p, event("2", answer.URL+"/410")) },
		"one that has not answered yet": func() error {
			hang := make(chan struct{})
			s := receiver(t, func(http.ResponseWriter, *http.Request) { <-hang })
			p := newPublisher(t, s, func(c *Config) { c.Timeout = time.Minute })
			t.Cleanup(func() { close(hang) }) // before Close
			p.wait = time.Millisecond
			_ = one(t, p, event("1", s.URL))
			return one(t, p, event("2", s.URL))
		},
		"a closed Publisher": func() error {
			p := newPublisher(t, answer, nil)
			p.Close()
			return one(t, p, event("1", answer.URL+"/200"))
		},
	}
	answers := func(code string) error { return one(t, p, event("1", answer.URL+"/"+code)) }
	tabled := map[string]bool{"410": true}
	faultmap.Check(t, "Webhooks", kindOf, made, func(name string) (errs []error) {
		if _, err := strconv.Atoi(name); err == nil {
			tabled[name] = true
			return []error{answers(name)}
		}
		for code := 300; code < 600 && name == "any other status but 2xx"; code++ {
			if text := strconv.Itoa(code); !tabled[text] {
				errs = append(errs, answers(text))
			}
		}
		return errs
	})
}

// A function of the app that hangs costs its event an attempt. The endpoint goes on, and so does
// Close.
func TestAFunctionOfTheAppThatHangsHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		p, err := New(Config{Secrets: func(context.Context, *forward.Event) ([]string, error) {
			<-hang
			return nil, nil
		}})
		relaytest.Must(err)
		e, attempts := event("1", "https://93.184.216.34"), 0
		for range 1000 {
			if err := p.Publish(t.Context(), []*forward.Event{e})[0]; handlers.ActionOf(err) == handlers.ActionRetry {
				attempts++
				e.Attempt++
			}
			time.Sleep(time.Second)
		}
		if attempts < 10 {
			t.Errorf("%d attempts in 1000 s: the endpoint is held up", attempts)
		}
		p.Close()
		close(hang)
	})
}
