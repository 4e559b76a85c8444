package outboxwebhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	neturl "net/url"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// errRefused is in the error of a URL or an address that is not dialled.
var errRefused = errors.New("refused")

// special are the blocks of IANA's registries of special-purpose addresses that are not for the
// public internet, or that lead to others: 6to4 and Teredo embed IPv4 addresses. Azure answers its
// machines at 168.63.129.16.
var special = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16",
	"172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")

// global is the block of all public IPv6 addresses.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// checkAddress refuses an address that is not public, unless it is allowed.
func (c *Config) checkAddress(a netip.Addr) error {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	a = a.Unmap().WithZone("")
	if slices.ContainsFunc(c.AllowNetworks, in) || !slices.ContainsFunc(special, in) && (a.Is4() || global.Contains(a)) {
		return nil
	}
	return fmt.Errorf("%w: %v is not a public address; Config.AllowNetworks lists those of your own network",
		errRefused, a)
}

// dialKey is that of a dial's *atomic.Bool: whether an address of the name was allowed.
type dialKey struct{}

// control is called with the address of each connection before it is dialled.
func (c *Config) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errRefused, address)
	}
	if err := c.checkAddress(a.Addr()); err != nil {
		return err
	}
	if allowed, ok := ctx.Value(dialKey{}).(*atomic.Bool); ok {
		allowed.Store(true)
	}
	return nil
}

// dial is that of d, but the error is errRefused only if each address of the name is refused: net
// returns the error of the first one.
func dial(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var allowed atomic.Bool
		conn, err := d.DialContext(context.WithValue(ctx, dialKey{}, &allowed), network, address)
		if err != nil && errors.Is(err, errRefused) && allowed.Load() {
			err = fmt.Errorf("%v; no other address answers", err)
		}
		return conn, err
	}
}

// checkURL refuses a URL that is not for webhooks.
func (c *Config) checkURL(text string) error {
	u, err := neturl.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the URL is not valid", errRefused)
	case u.Scheme != "https" && (u.Scheme != "http" || !c.AllowHTTP):
		return fmt.Errorf("%w: the URL begins with %q: must be https (Config.AllowHTTP allows http)", errRefused,
			u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("%w: the URL has no host", errRefused)
	case u.User != nil:
		return fmt.Errorf("%w: the URL has a user: requests are signed instead", errRefused)
	}
	return nil
}

// isAddress reports whether a URL has an address in place of a name.
func isAddress(text string) bool {
	u, err := neturl.Parse(text)
	if err != nil {
		return false
	}
	_, err = netip.ParseAddr(u.Hostname())
	return err == nil
}

// place is the part of a URL for errors. Its path and query may be secret.
func place(text string) string {
	u, err := neturl.Parse(text)
	if err != nil {
		return "a URL that is not valid"
	}
	return u.Scheme + "://" + u.Host
}

func (c *Config) client(resolver *net.Resolver) *http.Client {
	dialer := &net.Dialer{Timeout: c.Timeout, KeepAlive: 30 * time.Second, ControlContext: c.control,
		Resolver: resolver}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial(dialer), TLSClientConfig: c.TLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: c.Timeout,
			MaxIdleConns: 1000, MaxIdleConnsPerHost: max(c.Concurrency, 100), IdleConnTimeout: 90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
