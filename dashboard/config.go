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
)

// Access is what a request may do: zero is nothing, and the constants can be added up by |.
type Access uint8

// The rights. Who has any of them sees all pages; the texts of errors are on these.
const (
	View         Access = 1
	ViewPayloads Access = View | 2 // payloads, headers and keys as well
	Operate      Access = View | 4 // pause, cancel, run now, redrive, purge, hand back
)

func (a Access) has(b Access) bool { return a&b == b }

// Config says how the dashboard works. The zero Config denies everything, as it has no Authorize.
type Config struct {
	// Authorize says what a request may do, and who makes it, as the audit log is to name them. It
	// is called for each request, static files included, and must be safe for concurrent use. Nil:
	// every request is denied. Operate and ViewPayloads without a name of 1 to 256 bytes of UTF-8
	// are denied. A router that keeps the user elsewhere, as echo and gin do, carries it in the
	// request's context.
	Authorize func(*http.Request) (Access, string)

	// Schema is the PostgreSQL schema of the outbox; "" is "outbox".
	Schema string

	// ReadOnly denies Operate to everybody.
	ReadOnly bool

	// BasePath is what the paths of requests begin with, like "/outbox", where no http.StripPrefix
	// takes it away; "" is nothing. Links are relative, so behind a proxy that adds a prefix
	// nothing has to be said.
	BasePath string

	// TrustedOrigins are origins whose pages may act here as well as the dashboard's own, like
	// "https://admin.example.com", as for AddTrustedOrigin of http.CrossOriginProtection. Behind a
	// proxy that rewrites Host, name the origin that browsers show: over plain http actions get 403
	// otherwise.
	TrustedOrigins []string

	// CSRFField returns the name and the value of a hidden field that each form sends: the token of
	// the app's own protection against CSRF, where that is around the dashboard. It is called once
	// for each page, and must be safe for concurrent use. Nil, or an empty name: no field.
	CSRFField func(*http.Request) (name, value string)

	// StatementTimeout bounds each statement of a page; 0 is 5 s. A page whose statement takes
	// longer says so.
	StatementTimeout time.Duration

	// Logger gets errors, one record for each action, and one for each payload that is shown,
	// without the payload; nil is slog.Default(), as for relay.Config.Logger. Beside a relay with a
	// logger give both the same.
	Logger *slog.Logger
}

// check sets what is left out, and names all that is wrong.
func (c *Config) check() error {
	if c.StatementTimeout == 0 {
		c.StatementTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var errs []error
	if c.BasePath = strings.TrimSuffix(c.BasePath, "/"); c.BasePath != "" && (c.BasePath[0] != '/' || path.Clean(c.BasePath) != c.BasePath) {
		errs = append(errs, fmt.Errorf("dashboard: Config.BasePath: %q: write it like /outbox", c.BasePath))
	}
	if c.StatementTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("dashboard: Config.StatementTimeout: %v: must be 1ms at least, or 0 for 5s", c.StatementTimeout))
	}
	for _, origin := range c.TrustedOrigins {
		errs = append(errs, checkOrigin(origin))
	}
	return errors.Join(errs...)
}

// checkOrigin refuses a text that no browser sends as an Origin, and so would match none.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || origin != u.Scheme+"://"+u.Host:
		return fmt.Errorf("dashboard: Config.TrustedOrigins: %q: write it like https://admin.example.com, with nothing behind the host and port", origin)
	case u.Port() == map[string]string{"http": "80", "https": "443"}[u.Scheme]:
		return fmt.Errorf("dashboard: Config.TrustedOrigins: %q: leave the port out: browsers do where it is the default", origin)
	case origin != strings.ToLower(origin) || strings.ContainsFunc(origin, func(r rune) bool { return r == '*' || r > 0x7f }):
		return fmt.Errorf("dashboard: Config.TrustedOrigins: %q: write it as browsers send it: in lower case, in ASCII (xn--…), without *", origin)
	}
	return nil
}
