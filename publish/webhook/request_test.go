package outboxwebhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
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
		c.Secrets = func(_ context.Context, url string) ([]string, error) {
			if url != s.URL+"/hook" {
				t.Errorf("the secrets of %s are asked for", url)
			}
			return []string{secretOne, secretTwo}, nil
		}
		c.Headers = []string{"traceparent", "tracestate"}
	})
	if err := one(t, p, event("7", s.URL+"/hook")); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Verify(text, r.Header); err != nil {
			t.Errorf("the library does not verify it: %v", err)
		}
		if w.Verify(append(text, ' '), r.Header) == nil {
			t.Error("another body verifies")
		}
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	status, after, location := atomic.Int64{}, atomic.Pointer[string]{}, ""
	followed := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	location = followed.URL
	s := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		if a := after.Load(); a != nil {
			w.Header().Set("Retry-After", *a)
		}
		w.Header().Set("Location", location)
		w.WriteHeader(int(status.Load()))
	})
	gone := atomic.Int64{}
	p := newPublisher(t, s, func(c *Config) { c.OnGone = func(string) { gone.Add(1) } })
	for i, c := range []struct {
		status int
		after  string
		want   string // permanent, or the action of the result
	}{
		{200, "", "done"}, {204, "", "done"}, {301, "", "retry"}, {307, "", "retry"}, {413, "", "permanent"},
		{400, "", "retry"}, {401, "", "retry"}, {404, "", "retry"}, {500, "", "retry"}, {503, "", "retry"},
		{429, "", "retry"},
		{429, "7", "retry after 7s"}, {503, time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat),
			"retry after 1h0m0s"}, {429, "99999999999999999999", "retry after 1h0m0s"}, {410, "", "permanent"},
	} {
		status.Store(int64(c.status))
		after.Store(nil)
		if c.after != "" {
			after.Store(&c.after)
		}
		url := s.URL + "/" + string(rune('a'+i)) // an endpoint each
		err := one(t, p, event("1", url))
		got := handlers.ActionOf(err)
		switch {
		case forward.IsPermanent(err):
			got = "permanent"
		case c.after != "" && err != nil:
			got, _, _ = strings.Cut(err.Error(), ": outboxwebhook")
		}
		if got != c.want {
			t.Errorf("%d, %q: %s (%v), want %s", c.status, c.after, got, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "/"+string(rune('a'+i))) {
			t.Errorf("the error has the path of the endpoint, which may be secret: %v", err)
		}
		// The next event of an endpoint that rests is not sent.
		status.Store(200)
		after.Store(nil)
		next := one(t, p, event("2", url))
		switch {
		case c.status == 410:
			if !forward.IsPermanent(next) || gone.Load() != 1 {
				t.Errorf("after 410: %v, OnGone was called %d times", next, gone.Load())
			}
			p.Resume(url)
			if err := one(t, p, event("2", url)); err != nil {
				t.Errorf("after Resume: %v", err)
			}
		case c.after != "":
			if handlers.ActionOf(next) != "snooze" {
				t.Errorf("while the endpoint rests: %v, want a snooze", next)
			}
		case next != nil:
			t.Errorf("after %d: %v", c.status, next)
		}
	}
}

func TestAnEndpointWithoutSecretsGetsNothing(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	for name, secrets := range map[string]func() ([]string, error){
		"an error":     func() ([]string, error) { return nil, errors.New("the vault is closed") },
		"none":         func() ([]string, error) { return nil, nil },
		"an empty one": func() ([]string, error) { return []string{"whsec_"}, nil },
		"a bad one": func() ([]string, error) {
			return []string{"whsec_%%%"}, nil
		},
	} {
		p := newPublisher(t, s, func(c *Config) {
			c.Secrets = func(context.Context, string) ([]string,
				error) {
				return secrets()
			}
		})
		if err := one(t, p, event("1", s.URL)); err == nil || forward.IsPermanent(err) ||
			strings.Contains(err.Error(), "%%%") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Timeout: -1, Concurrency: -1, Rate: -1, GoneFor: -1, Allow: make([]netipPrefix, 1),
		Headers: []string{"ce-id", "a b"}})
	for _, field := range []string{"Secrets", "Timeout", "Concurrency", "Rate", "GoneFor", "Allow", `Headers: "ce-id"`,
		`Headers: "a b"`} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	p, err := New(Config{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
	if _, yes := forward.IsUnavailable(one(t, p, event("1", "https://example.com"))); !yes ||
		p.Ready(t.Context()) == nil {
		t.Error("a closed Publisher publishes")
	}
}
