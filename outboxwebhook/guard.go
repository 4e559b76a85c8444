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
	"syscall"
	"time"
)

// errRefused is in the error of a URL or an address that is not dialled.
var errRefused = errors.New("refused")

// special are the blocks of IANA's registries of special-purpose addresses that are not for the
// public internet, or that lead to others: NAT64, 6to4 and Teredo embed IPv4 addresses.
var special = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8")

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
	if slices.ContainsFunc(c.Allow, in) || !slices.ContainsFunc(special, in) && a.IsGlobalUnicast() {
		return nil
	}
	return fmt.Errorf("%w: %v is not a public address; Config.Allow lists those of your own network", errRefused, a)
}

// control is called with the address of each connection before it is dialled.
func (c *Config) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address", errRefused, address)
	}
	return c.checkAddress(a.Addr())
}

// checkURL refuses a URL that is not for webhooks.
func (c *Config) checkURL(text string) error {
	u, err := neturl.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the URL is not valid", errRefused)
	case u.Scheme != "https" && (u.Scheme != "http" || !c.AllowHTTP):
		return fmt.Errorf("%w: the URL begins with %q: must be https (Config.AllowHTTP allows http)", errRefused, u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("%w: the URL has no host", errRefused)
	case u.User != nil:
		return fmt.Errorf("%w: the URL has a user: requests are signed instead", errRefused)
	}
	return nil
}

// place is what errors say of a URL, whose path and query may be secret.
func place(text string) string {
	u, err := neturl.Parse(text)
	if err != nil {
		return "a URL that is not valid"
	}
	return u.Scheme + "://" + u.Host
}

func (c *Config) client(resolver *net.Resolver) *http.Client {
	dialer := &net.Dialer{Timeout: c.Timeout, KeepAlive: 30 * time.Second, ControlContext: c.control, Resolver: resolver}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: c.TLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: c.Timeout,
			MaxIdleConns: 1000, MaxIdleConnsPerHost: max(c.Concurrency, 100), IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
