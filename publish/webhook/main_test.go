package outboxwebhook

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/relaytest"
)

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
	c := Config{Allow: []netip.Prefix{loopback},
		Secrets: func(context.Context, string) ([]string, error) { return []string{secretOne}, nil }}
	if s != nil {
		c.TLS = &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	relaytest.Must(err)
	p.wait = 20 * time.Second // a busy machine answers late
	t.Cleanup(p.Close)
	return p
}

func event(id, to string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop.example", Type: "order.placed", Key: "c1", Subject: "größe",
		Time:    time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1", "tracestate": "a=%20 b", "Host": "elsewhere"},
		Data:    []byte(`{"n": 1}`), To: to, Attempt: 1}
}

// one publishes one event.
func one(t testing.TB, p *Publisher, e *forward.Event) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if errs := p.Publish(ctx, []*forward.Event{e}); errs != nil {
		return errs[0]
	}
	return nil
}
