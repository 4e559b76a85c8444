package outboxwebhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/txoutbox/outbox/forward"
)

// Config says how events are posted. Secrets or Unsigned is needed; the other zero values are
// defaults. Its functions are called by several goroutines at once; they must not change or keep an
// event.
type Config struct {
	// Secrets returns the signing secrets of an event's endpoint, e.To, as whsec_… or their base64
	// alone. A request has a signature by each, so an endpoint can change from one to the other.
	// After an error, an invalid secret or none, nothing is sent and the attempt fails. Secrets is
	// called for each request.
	Secrets func(ctx context.Context, e *forward.Event) ([]string, error)
	// Unsigned sends requests without signatures, if Secrets is nil.
	Unsigned bool

	// Timeout bounds a request: default 5 s, at most a minute.
	Timeout time.Duration
	// Concurrency is how many requests an endpoint gets at once from this Publisher: default 10.
	Concurrency int
	// Rate is how many requests an endpoint gets from this Publisher within RatePer at most, evenly;
	// 0 is any number. RatePer is by default a second, and refused without a Rate.
	Rate    int
	RatePer time.Duration
	// GoneFor is how long an endpoint that answered 410 gets no more requests: default an hour.
	GoneFor time.Duration
	// OnGone is called when an endpoint, e.To, answers 410, so that the app sends no more events
	// there. Its error is added to that of the event, which is a dead letter.
	OnGone func(ctx context.Context, e *forward.Event) error

	// AllowHTTP allows URLs with http; by default only https is.
	AllowHTTP bool
	// AllowNetworks are addresses that are dialled although they are not public: those of one's own
	// network.
	AllowNetworks []netip.Prefix
	// TLS of connections; nil is the default of crypto/tls.
	TLS *tls.Config
	// TaskHeaders are the names of task headers that are sent along, such as traceparent; by default
	// none is. Those of the request itself, of CloudEvents and of Standard Webhooks cannot be named.
	TaskHeaders []string
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

// check names what is wrong, and sets the defaults.
func (c *Config) check() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("outboxwebhook: Config."+format, args...))
		}
	}
	refuse(c.Secrets == nil && !c.Unsigned, "Secrets: is nil: receivers could not tell your requests from others; set "+
		"Unsigned if that is what you want")
	refuse(c.Timeout < 0 || c.Timeout > mostTimeout, "Timeout: is %v, must be at most %v", c.Timeout, mostTimeout)
	refuse(c.Concurrency < 0, "Concurrency: is %d, must not be negative", c.Concurrency)
	refuse(c.Rate < 0 || c.RatePer < 0 || c.RatePer > 0 && c.Rate == 0,
		"Rate: is %d in %v, must be at least 1, or 0 in 0 for any number", c.Rate, c.RatePer)
	refuse(c.GoneFor < 0, "GoneFor: is %v, must not be negative", c.GoneFor)
	for _, p := range c.AllowNetworks {
		refuse(!p.IsValid() || p.Addr().Is4In6(), "AllowNetworks: %v is no prefix of IPv4 or IPv6 addresses", p)
	}
	for _, name := range c.TaskHeaders {
		refuse(!headerName.MatchString(name) || ownHeader.MatchString(name),
			"TaskHeaders: %q is no name of a header, or of one that each request has", name)
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.RatePer = cmp.Or(c.RatePer, time.Second)
	c.GoneFor = cmp.Or(c.GoneFor, defaultGoneFor)
	c.AllowNetworks, c.TaskHeaders = slices.Clone(c.AllowNetworks), slices.Clone(c.TaskHeaders)
	c.TLS = c.TLS.Clone() // net/http adds protocols to it
	return errors.Join(errs...)
}
