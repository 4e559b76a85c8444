package outboxwebhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"golang.org/x/time/rate"
)

// Config of New. Secrets or Unsigned is needed; the other zero values are defaults.
type Config struct {
	// Secrets returns the signing secrets of an endpoint, as whsec_… or their base64 alone. A request
	// has a signature by each, so an endpoint can change from one to the other.
	Secrets func(ctx context.Context, url string) ([]string, error)
	// Unsigned sends requests without signatures, if Secrets is nil.
	Unsigned bool

	// Timeout of a request: default 5 s, at most a minute.
	Timeout time.Duration
	// Concurrency is how many requests an endpoint gets at once: default 10.
	Concurrency int
	// Rate is how many requests an endpoint gets in a second at most; 0 is any number.
	Rate rate.Limit
	// GoneFor is how long an endpoint that answered 410 gets no more requests: default an hour.
	GoneFor time.Duration
	// OnGone is called when an endpoint answers 410, so that the app stops to send events there.
	OnGone func(url string)

	// AllowHTTP allows URLs with http; by default only https is.
	AllowHTTP bool
	// Allow are addresses that are dialled although they are not public: those of one's own network.
	Allow []netip.Prefix
	// TLS of connections; nil is the default of crypto/tls.
	TLS *tls.Config
	// Headers are the names of task headers that are sent along, such as traceparent; by default none
	// is. Those of the request itself, of CloudEvents and of Standard Webhooks cannot be named.
	Headers []string
}

var (
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	ownHeader  = regexp.MustCompile("(?i)^(ce-.*|webhook-.*|content-.*|user-agent|host|connection|transfer-encoding)$")
)

const (
	defaultTimeout     = 5 * time.Second
	mostTimeout        = time.Minute
	defaultConcurrency = 10
	defaultGoneFor     = time.Hour
)

func (c *Config) check() error {
	var errs []error
	if c.Secrets == nil && !c.Unsigned {
		errs = append(errs, errors.New("outboxwebhook: Config.Secrets: is nil: receivers could not tell your "+
			"requests from others; set Unsigned if that is what you want"))
	}
	if c.Timeout < 0 || c.Timeout > mostTimeout {
		errs = append(errs, fmt.Errorf("outboxwebhook: Config.Timeout: is %v, must be at most %v", c.Timeout,
			mostTimeout))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("outboxwebhook: Config.Concurrency: is %d, must not be negative", c.Concurrency))
	}
	if c.Rate < 0 {
		errs = append(errs, fmt.Errorf("outboxwebhook: Config.Rate: is %v, must not be negative", c.Rate))
	}
	if c.GoneFor < 0 {
		errs = append(errs, fmt.Errorf("outboxwebhook: Config.GoneFor: is %v, must not be negative", c.GoneFor))
	}
	for _, p := range c.Allow {
		if !p.IsValid() || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("outboxwebhook: Config.Allow: %v is no prefix of IPv4 or IPv6 addresses", p))
		}
	}
	for _, name := range c.Headers {
		if !headerName.MatchString(name) || ownHeader.MatchString(name) {
			errs = append(errs, fmt.Errorf("outboxwebhook: Config.Headers: %q is no name of a header, or of one that "+
				"each request has", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) fill() {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Concurrency == 0 {
		c.Concurrency = defaultConcurrency
	}
	if c.GoneFor == 0 {
		c.GoneFor = defaultGoneFor
	}
}
