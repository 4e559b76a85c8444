package relaytest

import (
	"net/url"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/proxy"
)

// Through starts a proxy before the server of the URL, which ends with the test, and returns the
// URL that leads through it.
func Through(t testing.TB, to string) (*proxy.Proxy, string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	query := u.Query()
	query.Set("sslmode", "disable") // the proxy reads the messages
	u.Host, u.RawQuery = p.Address(), query.Encode()
	return p, u.String()
}
