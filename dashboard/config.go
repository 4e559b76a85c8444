package dashboard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
)

// Access is a set of rights, combined by |. Zero is none.
type Access uint

// The rights. Each includes AccessView: all pages, with the texts of errors.
const (
	AccessView         Access = 1
	AccessViewPayloads Access = AccessView | 2 // payloads, headers and keys as well, and filters by them
	// AccessOperate allows all actions: pause, cancel, run now, reschedule, set priority, retype,
	// redrive, purge, hand back leases. To change a payload needs AccessViewPayloads as well.
	AccessOperate Access = AccessView | 4
)

func (a Access) has(b Access) bool { return a&b == b }

// User is the user of a request. The zero User is denied.
type User struct {
	// Name is for the audit log: 1 to 256 bytes of UTF-8. Any other name denies AccessOperate and
	// AccessViewPayloads.
	Name   string
	Access Access
}

// Config says how the dashboard works. The zero Config denies everything, as it has no Authorize.
type Config struct {
	// Authorize returns the user of a request. It is called for each request, static files included,
	// and must be safe for concurrent use. Nil denies every request. With a router that keeps the user
	// elsewhere, as echo and gin do, put the user into the request's context.
	Authorize func(*http.Request) User

	// Schema is the PostgreSQL schema of the outbox; "" is "outbox".
	Schema string

	// ReadOnly denies AccessOperate to all users.
	ReadOnly bool

	// BasePath is the prefix of the requests' paths, like "/outbox"; "" is none, as behind
	// http.StripPrefix. Links are relative, so a proxy may add a prefix of its own.
	BasePath string

	// TrustedOrigins are further origins whose pages may act here, like "https://admin.example.com",
	// as for AddTrustedOrigin of http.CrossOriginProtection. Behind a proxy that rewrites Host, name
	// the origin that browsers show: without it, actions over plain http get 403. New refuses an
	// origin that no browser sends, as one with a default port or capitals.
	TrustedOrigins []string

	// CSRFField returns the name and value of a hidden field in each form: the token of a protection
	// against CSRF that the app puts around the dashboard. It is called once for each page, and must
	// be safe for concurrent use. If it is nil or the name is empty, there is no field.
	CSRFField func(*http.Request) (name, value string)

	// Codecs decode the payloads that an outbox.Codec has encoded, by their names, for users with
	// AccessViewPayloads. Without the codec of a task its page shows the stored string, and the codec's
	// name. An encoded payload cannot be changed, and no filter by payload finds it.
	Codecs []outbox.PayloadCodec

	// StatementTimeout bounds each statement of a page, and three times that the page. 0 is 5 s; the
	// least is 1 ms. A page says if its time ran out.
	StatementTimeout time.Duration

	// Logger gets errors, a record of each action, and a record of each look at a payload, without
	// the payload; nil is slog.Default().
	Logger *slog.Logger
}

// check sets the defaults, and names all faults.
func (c *Config) check() error {
	if c.StatementTimeout == 0 {
		c.StatementTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var errs []error
	c.BasePath = strings.TrimSuffix(c.BasePath, "/")
	if c.BasePath != "" && (c.BasePath[0] != '/' || path.Clean(c.BasePath) != c.BasePath) {
		errs = append(errs, fmt.Errorf("dashboard: Config.BasePath: %q: write it like /outbox", c.BasePath))
	}
	if c.StatementTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("dashboard: Config.StatementTimeout: %v: must be 1ms at least, or 0 for 5s",
			c.StatementTimeout))
	}
	return errors.Join(errs...)
}

// codecs are the Codecs as a set; nil if there are none.
func (c *Config) codecs() (*codec.Set, error) {
	if len(c.Codecs) == 0 {
		return nil, nil
	}
	var all []codec.Codec
	for _, one := range c.Codecs {
		all = append(all, one)
	}
	set, err := codec.New(all...)
	if err != nil {
		err = fmt.Errorf("dashboard: Config.Codecs: %w", err)
	}
	return set, err
}

// trust lets pages of an origin act. It refuses a text that no browser sends as an Origin.
func trust(cross *http.CrossOriginProtection, origin string) error {
	invalid := func(remedy string) error {
		return fmt.Errorf("dashboard: Config.TrustedOrigins: %q: %s", origin, remedy)
	}
	u, err := url.Parse(origin)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		origin != u.Scheme+"://"+u.Host || cross.AddTrustedOrigin(origin) != nil:
		return invalid("write it like https://admin.example.com, with nothing behind the host and port")
	case u.Port() == map[string]string{"http": "80", "https": "443"}[u.Scheme]:
		return invalid("leave the port out, as browsers do if it is the default")
	case origin != strings.ToLower(origin) ||
		strings.ContainsFunc(origin, func(r rune) bool { return r == '*' || r > 0x7f }):
		return invalid("write it as browsers send it: in lower case, in ASCII (xn--…), without *")
	}
	return nil
}
