package outboxwebhook

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

type netipPrefix = netip.Prefix

func TestAddresses(t *testing.T) {
	t.Parallel()
	c := &Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for address, want := range map[string]bool{
		"93.184.216.34": true, "8.8.8.8": true, "2606:2800:220:1::1": true, "10.1.2.3": true,
		"127.0.0.1": false, "127.255.255.254": false, "10.0.0.1": false, "10.255.0.1": false, "172.16.0.1": false,
		"172.31.255.255": false,
		"192.168.1.1":    false, "169.254.169.254": false, "100.64.0.1": false, "0.0.0.0": false, "0.1.2.3": false,
		"224.0.0.1":       false,
		"255.255.255.255": false, "240.0.0.1": false, "192.0.2.1": false, "198.18.0.1": false, "198.51.100.7": false,
		"203.0.113.9": false,
		"::1":         false, "::": false, "fd00::1": false, "fc00::1": false, "fe80::1": false, "fe80::1%eth0": false,
		"ff02::1":          false,
		"::ffff:127.0.0.1": false, "::ffff:8.8.8.8": true, "64:ff9b::7f00:1": false, "::ffff:0:127.0.0.1": false,
		"168.63.129.16": false, "2002:7f00:1::": false, "2001:db8::1": false, "::127.0.0.1": false,
	} {
		if err := c.checkAddress(netip.MustParseAddr(address)); (err == nil) != want {
			t.Errorf("%s: %v, want it to be allowed: %v", address, err, want)
		}
	}
}

// A request to an address that is not public is refused before a connection, however it is written.
func TestRefusedURLs(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.URL, "https://"))
	p := newPublisher(t, s, func(c *Config) { c.AllowNetworks = nil })
	for _, url := range []string{
		s.URL, "https://localhost:" + port, "https://127.1:" + port, "https://[::1]:" + port,
		"https://[::ffff:127.0.0.1]:" + port, "https://0.0.0.0:" + port,
		"https://10.0.0.1", "https://169.254.169.254/latest/meta-data", "https://[fd00::1]/", "http://example.com",
		"ftp://example.com", "https://",
		"https://user:password@example.com", "file:///etc/passwd", "::", "",
	} {
		err := one(t, p, event("1", url))
		// A name may get another address. 127.1 is an address to some resolvers, and a name to others.
		if err == nil || !forward.IsPermanent(err) && !strings.Contains(url, "127.1:") &&
			!strings.Contains(url, "localhost") {
			t.Errorf("%q: %v, want a permanent error", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "password") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// nameServer answers each question for an address with the next of these, which may be several; the
// last answer stays.
func nameServer(t *testing.T, answers ...string) (r *net.Resolver, asked *atomic.Int64) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	relaytest.Must(err)
	t.Cleanup(func() { _ = conn.Close() })
	asked = &atomic.Int64{}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			end := 12
			for end < n && buffer[end] != 0 {
				end += int(buffer[end]) + 1
			}
			question := buffer[12 : end+5]
			reply := append([]byte{buffer[0], buffer[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
			if binary.BigEndian.Uint16(question[len(question)-4:]) == 1 { // A
				i := min(int(asked.Add(1)), len(answers)) - 1
				for text := range strings.SplitSeq(answers[i], " ") {
					a := netip.MustParseAddr(text).As4()
					reply[7]++
					reply = append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4), a[:]...)
				}
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}, asked
}

// The answer of the name server changes from an address that is allowed to one that is not: the
// address that is dialled decides, for each connection.
func TestANameThatResolvesToARefusedAddressLaterIsRefusedThen(t *testing.T) {
	t.Parallel()
	requests := atomic.Int64{}
	s := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Connection", "close") // the next request dials again
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.URL, "https://"))
	p := newPublisher(t, s, func(c *Config) {
		c.AllowNetworks, c.TLS.ServerName = []netip.Prefix{loopback}, "example.com"
	})
	resolver, asked := nameServer(t, "127.0.0.1", "127.0.0.2", "10.0.0.1", "169.254.169.254")
	p.client = p.config.client(resolver)
	url := "https://hook.example.org:" + port
	relaytest.Must(one(t, p, event("1", url)))
	for i := range 3 {
		if err := one(t, p, event("2", url)); err == nil || forward.IsPermanent(err) ||
			!strings.Contains(err.Error(), "not a public address") {
			t.Errorf("answer %d: %v, want a refusal", i+2, err)
		}
	}
	if requests.Load() != 1 || asked.Load() != 4 {
		t.Errorf("%d requests, %d questions; want 1 and 4", requests.Load(), asked.Load())
	}
}

// A name has an address that is refused, and one that is down: that is no reason for a dead letter.
func TestAServerThatIsDownBesideARefusedAddressIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := receiver(t, func(http.ResponseWriter, *http.Request) {})
	// The local port of an open connection listens to nothing, and no other test can have it.
	held, err := net.Dial("tcp", s.Listener.Addr().String())
	relaytest.Must(err)
	defer held.Close()
	_, port, _ := net.SplitHostPort(held.LocalAddr().String())
	p := newPublisher(t, s, nil)
	resolver, _ := nameServer(t, "127.0.0.2 127.0.0.1")
	p.client = p.config.client(resolver)
	if err := one(t, p, event("1", "https://hook.example.org:"+port)); err == nil || forward.IsPermanent(err) ||
		!strings.Contains(err.Error(), "no other address answers") {
		t.Errorf("got %v, want an error that is not permanent", err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 1000, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "0": 0, "7": 7 * time.Second, "86400": time.Hour, "99999999999999": mostRetryAfter,
		"Sun, 01 Nov 2026 12:00:30 GMT": 30 * time.Second, "Sun, 01 Nov 2026 11:00:00 GMT": 0,
		"Mon, 02 Nov 2026 12:00:00 GMT": time.Hour,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
