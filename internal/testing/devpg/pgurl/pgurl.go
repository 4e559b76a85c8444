// Package pgurl has the ports and URLs of PostgreSQL servers, and waits for what they name.
package pgurl

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"time"

	_ "github.com/lib/pq" // the driver "postgres"
)

// New is the administrator's URL of a server that was started with this password.
func New(address, password string) *url.URL {
	return &url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", password),
		Host:     address,
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
}

// Redacted is the URL without its password, wherever lib/pq would read one.
func Redacted(u *url.URL) string {
	query := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if query.Has(name) {
			query.Set(name, "xxxxx")
		}
	}
	shown := *u
	shown.RawQuery = query.Encode()
	return shown.Redacted()
}

// Version connects once, and returns the server's version.
func Version(ctx context.Context, u *url.URL) (version string, err error) {
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

// Await connects again and again until it can, until ended returns an error, or until ctx is done.
func Await(ctx context.Context, u *url.URL, ended func() error) (version string, err error) {
	for {
		version, err = Version(ctx, u)
		if end := ended(); end != nil { // also after an answer: another server may have the port
			return "", end
		}
		if err == nil {
			return version, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("no answer: %w: %w", ctx.Err(), err)
		}
	}
}

// FreePort returns a loopback port that nobody listens on. It is below those that systems take for
// outgoing connections, so it stays free while its server is stopped. Another process may still be
// faster; then the server says so.
func FreePort() (int, error) {
	for range 100 {
		port := 15000 + rand.IntN(15000)
		if l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free loopback port")
}
