package devpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/txoutbox/outbox/internal/devpg/pgurl"
)

const envURL = "OUTBOX_TEST_DATABASE_URL"

// errUnset is not mentioned when another kind of server works.
var errUnset = errors.New(envURL + " is not set")

// named is a server that is there already.
type named struct {
	url     *url.URL
	version string
}

func (n named) URL() *url.URL   { return n.url }
func (n named) Version() string { return n.version }
func (n named) Close() error    { return nil }

func openURL(ctx context.Context, _ config) (source, string, error) {
	raw := os.Getenv(envURL)
	if raw == "" {
		return nil, "", errUnset
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// err quotes the URL, which may hold a password
		return nil, "", errors.New(envURL + " is not of the form postgres://user:password@host:port/database")
	}
	version, err := pgurl.Version(ctx, u)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", pgurl.Redacted(u), err)
	}
	return named{u, version}, envURL, nil
}
