package outboxwebhook

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

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
