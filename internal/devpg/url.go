package devpg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "github.com/lib/pq" // the driver "postgres"
)

const envURL = "OUTBOX_TEST_DATABASE_URL"

func openURL(ctx context.Context) (*Server, error) {
	raw := os.Getenv(envURL)
	if raw == "" {
		return nil, fmt.Errorf("%s %w", envURL, errUnset)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// url.Parse quotes the URL, which may hold a password
		return nil, errors.New(envURL + " is not of the form postgres://user:password@host:port/database")
	}
	version, err := serverVersion(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redacted(u), err)
	}
	return &Server{kind: kindURL, url: u, detail: "PostgreSQL " + version + " from " + envURL}, nil
}

// redacted is the URL without its password, wherever lib/pq would read one.
func redacted(u *url.URL) string {
	query := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if query.Has(name) {
			query.Set(name, "xxxxx")
		}
	}
	shown := *u
	if len(query) > 0 {
		shown.RawQuery = query.Encode()
	}
	return shown.Redacted()
}

// serverURL is the administrator's URL of a server that this package started.
func serverURL(address, password string) *url.URL {
	return &url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", password),
		Host:     address,
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
}

// serverVersion connects once; nil error means that the server is ready for work.
func serverVersion(ctx context.Context, u *url.URL) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	db, err := sql.Open("postgres", u.String())
	if err != nil {
		return "", err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SHOW server_version").Scan(&version)
	return version, err
}

// untilReady connects again and again until it can, the server has ended, or ctx is done.
func untilReady(ctx context.Context, u *url.URL, ended <-chan struct{}) (version string, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		version, err = serverVersion(ctx, u)
		select {
		case <-ended: // also if it answered: then another server has its port
			return "", errors.New("server has ended")
		default:
		}
		if err == nil {
			return version, nil
		}
		select {
		case <-ended:
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("no answer: %w: %w", ctx.Err(), err)
		}
	}
}
