package devpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgurl"
)

const envURL = "OUTBOX_TEST_DATABASE_URL"

// errUnset is not mentioned when another kind of server works.
var errUnset = errors.New(envURL + " is not set")

func openURL(ctx context.Context, _ config) (found, error) {
	raw := os.Getenv(envURL)
	if raw == "" {
		return found{}, errUnset
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// err quotes the URL, which may hold a password
		return found{}, errors.New(envURL + " is not of the form postgres://user:password@host:port/database")
	}
	version, err := pgurl.Version(ctx, u)
	if err != nil {
		return found{}, fmt.Errorf("%s: %w", pgurl.Redacted(u), err)
	}
	return found{u, version, envURL, nil, func() error { return nil }}, nil
}
