package outboxamqp

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	defaultChannels    = 4
	mostChannels       = 1000
	defaultDialTimeout = 10 * time.Second
)

// Config says how events are published. It is copied by Open; the zero value of a field is its
// default.
type Config struct {
	// Exchange is the exchange that events are published to. Default "", the default exchange:
	// routing keys are then the names of queues.
	Exchange string
	// Channels is how many calls of Publish run at once; others wait. Each has an AMQP channel of
	// its own. 1 to 1000, default 4. Beyond the broker's channel_max, events are
	// forward.Unavailable.
	Channels int
	// DialConfig has settings that no URL has, such as TLS. Its Recovery must be nil, since the
	// Publisher connects again by itself. Default nil.
	DialConfig *amqp.Config
	// Logger gets connections that are made, lost or blocked. Errors that Publish returns are not
	// logged. nil is slog.Default().
	Logger *slog.Logger
}

// dialing has the parameters of a connection.
type dialing struct {
	url     string
	name    string // the URL without its password, for messages
	timeout time.Duration
	config  amqp.Config
}

// check names what is wrong, and sets the defaults.
func (c *Config) check() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("outboxamqp: Config."+format, args...))
		}
	}
	c.Channels, c.Logger = cmp.Or(c.Channels, defaultChannels), cmp.Or(c.Logger, slog.Default())
	refuse(c.Channels < 1 || c.Channels > mostChannels, "Channels: %d: must be within 1 to %d; 0 is %d", c.Channels,
		mostChannels, defaultChannels)
	refuse(len(c.Exchange) > mostShort, "Exchange: has %d bytes: AMQP allows %d", len(c.Exchange), mostShort)
	refuse(c.DialConfig != nil && c.DialConfig.Recovery != nil,
		"DialConfig.Recovery: must be nil: the Publisher connects again by itself")
	return errors.Join(errs...)
}

// newDialing checks the URL. Errors of parsing may quote the password, so they are left out.
func newDialing(address string, config *amqp.Config) (dialing, error) {
	u, err := url.Parse(address)
	uri, amqpErr := amqp.ParseURI(address)
	if err != nil || amqpErr != nil {
		return dialing{}, errors.New("outboxamqp: the URL is malformed: it is like " +
			"amqp://user:password@host:5672/vhost, " +
			"with amqps for TLS and reserved characters of the password as %XX")
	}
	d := dialing{url: address, name: u.Redacted(), timeout: defaultDialTimeout}
	if uri.ConnectionTimeout > 0 {
		d.timeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	if config != nil {
		d.config = *config
		d.config = d.copied()
	}
	return d, nil
}

// copied is the configuration with its parts, to which the library writes.
func (d *dialing) copied() amqp.Config {
	c := d.config
	c.Properties, c.SASL = maps.Clone(c.Properties), slices.Clone(c.SASL)
	if c.TLSClientConfig != nil {
		c.TLSClientConfig = c.TLSClientConfig.Clone()
	}
	return c
}
