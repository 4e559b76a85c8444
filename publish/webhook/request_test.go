package outboxwebhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	neturl "net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestARequestIsSignedWithEachSecret(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	body := make(chan []byte, 1)
	s := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got <- r
		body <- text
	})
	p := newPublisher(t, s, func(c *Config) {
		c.Secrets = func(_ context.Context, e *forward.Event) ([]string, error) {
			if e.To != s.URL+"/hook" {
				t.Errorf("the secrets of %s are asked for", e.To)
			}
			return []string{secretOne, secretTwo}, nil
		}
		c.TaskHeaders = []string{"traceparent", "tracestate"}
	})
	relaytest.Must(one(t, p, event("7", s.URL+"/hook")))
	r, text := <-got, <-body
	for name, want := range map[string]string{"webhook-id": "7", "Content-Type": "application/json", "ce-id": "7",
		"ce-source": "/shop.example",
		"ce-type":   "order.placed", "ce-subject": "gr%C3%B6%C3%9Fe", "ce-specversion": "1.0",
		"ce-time": "2001-09-09T01:46:40Z", "traceparent": "00-1", "tracestate": "a=%20 b"} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if r.Method != http.MethodPost || string(text) != `{"n": 1}` || strings.Contains(r.Host, "elsewhere") {
		t.Errorf("%s to %s: %s", r.Method, r.Host, text)
	}
	for _, secret := range []string{secretOne, secretTwo} {
		w, err := standardwebhooks.NewWebhook(secret)
		relaytest.Must(err)
		if err := w.Verify(text, r.Header); err != nil {
			t.Errorf("the library does not verify it: %v", err)
		}
		if w.Verify(append(text, ' '), r.Header) == nil {
			t.Error("another body verifies")
		}
	}
}

// An endpoint that answers 410 or asks to wait gets no requests. docs/faults.md has all answers.
func TestAnEndpointThatAsksForARestHasIt(t *testing.T) {
	t.Parallel()
	followed := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	s := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.Header().Set("Retry-After", r.URL.Query().Get("after"))
		w.Header().Set("Location", followed.URL)
		w.WriteHeader(status)
	})
	gone := atomic.Int64{}
	p := newPublisher(t, s, func(c *Config) {
		c.OnGone = func(_ context.Context, e *forward.Event) error {
			gone.Add(1)
			return fmt.Errorf("endpoint of %s is not noted", e.OrderingKey)
		}
	})
	tomorrow := time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat)
	for _, c := range []struct {
		status      int
		after       string
		first, next handlers.Action // the actions of results; a permanent error is dead
	}{
		{200, "", "done", "done"}, {307, "", "retry", "retry"}, {429, "", "retry", "retry"},
		{429, "7", "retry_after", "snooze"}, {503, tomorrow, "retry_after", "snooze"}, {410, "", "dead", "dead"},
	} {
		e := event("1", fmt.Sprint(s.URL, "/secret?status=", c.status, "&after=", neturl.QueryEscape(c.after)))
		for i, want := range []handlers.Action{c.first, c.next} {
			err := one(t, p, e)
			got := handlers.ActionOf(err)
			if forward.IsPermanent(err) {
				got = "dead"
			}
			if got != want || err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%d, %q, event %d: %s without the path, want %s: %v", c.status, c.after, i, got, want, err)
			}
		}
		if c.status == http.StatusGone {
			if gone.Load() != 1 {
				t.Errorf("OnGone was called %d times", gone.Load())
			}
			p.Resume(e.To)
			if err := one(t, p, e); !forward.IsPermanent(err) || gone.Load() != 2 ||
				!strings.Contains(err.Error(), "Config.OnGone: endpoint of c1 is not noted") {
				t.Errorf("after Resume: %v, OnGone was called %d times, want a request", err, gone.Load())
			}
		}
	}
}

func TestAnEndpointWithoutSecretsGetsNothing(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	for name, secrets := range map[string][]string{"none": nil, "an empty one": {"whsec_"}, "a bad one": {"whsec_%%%"}} {
		p := newPublisher(t, s, func(c *Config) {
			c.Secrets = func(context.Context, *forward.Event) ([]string, error) { return secrets, nil }
		})
		if err := one(t, p, event("1", s.URL)); err == nil || forward.IsPermanent(err) ||
			strings.Contains(err.Error(), "%%%") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Timeout: -1, Concurrency: -1, Rate: -1, GoneFor: -1, AllowNetworks: make([]netipPrefix, 1),
		TaskHeaders: []string{"ce-id", "a b"}})
	for _, field := range []string{"Secrets", "Timeout", "Concurrency", "Rate", "GoneFor", "AllowNetworks",
		`TaskHeaders: "ce-id"`,
		`TaskHeaders: "a b"`} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if _, err = New(Config{Unsigned: true, RatePer: time.Second}); err == nil || !strings.Contains(err.Error(), "Rate") {
		t.Errorf("a RatePer without a Rate: %v", err)
	}
	p, err := New(Config{Unsigned: true})
	relaytest.Must(err)
	relaytest.Must(errors.Join(p.Close(), p.Close()))
	if !forward.IsUnavailable(one(t, p, event("1", "https://example.com"))) ||
		p.Ready(t.Context()) == nil {
		t.Error("a closed Publisher publishes")
	}
}

func TestMain(m *testing.M) { relaytest.Main(m) }

var loopback = netip.MustParsePrefix("127.0.0.1/32")

const secretOne, secretTwo = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2Vjb25kIHNlY3JldCBvZiB0aGUgZW5kcG9pbnQ="

// receiver is an HTTPS server on 127.0.0.1.
func receiver(t testing.TB, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(handle)
	t.Cleanup(s.Close)
	return s
}

// newPublisher may dial the server. change may be nil.
func newPublisher(t testing.TB, s *httptest.Server, change func(*Config)) *Publisher {
	t.Helper()
	c := Config{AllowNetworks: []netip.Prefix{loopback},
		Secrets: func(context.Context, *forward.Event) ([]string, error) { return []string{secretOne}, nil }}
	if s != nil {
		c.TLS = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	relaytest.Must(err)
	p.wait = time.Minute // a busy machine answers late
	t.Cleanup(func() { relaytest.Must(p.Close()) })
	return p
}

// The app's configuration of TLS stays as it is: several publishers may share it.
func TestThePublisherLeavesTheTLSOfItsConfigAlone(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) {})
	var of *tls.Config
	for range 2 {
		p := newPublisher(t, s, func(c *Config) {
			if of == nil {
				of = c.TLS
			}
			c.TLS = of
		})
		relaytest.Must(one(t, p, event("1", s.URL)))
	}
	if len(of.NextProtos) > 0 {
		t.Errorf("its protocols are %q", of.NextProtos)
	}
}

func event(id, to string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop.example", Type: "order.placed", OrderingKey: "c1", Subject: "größe",
		Time:    time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1", "tracestate": "a=%20 b", "Host": "elsewhere"},
		Data:    []byte(`{"n": 1}`), To: to, Attempt: 1}
}

// one publishes one event.
func one(t testing.TB, p *Publisher, e *forward.Event) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if errs := p.Publish(ctx, []*forward.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}
