package schema

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"time"

	"github.com/sethvargo/go-retry"
)

// repeat does step until it has finished, and again where that may help. It returns in any case some time after ctx has ended: a
// driver may wait for a dead peer beyond its context, and Commit has none. Then the goroutine is left behind until the connection fails.
func (s *settings) repeat(ctx context.Context, what string, step func(context.Context) (finished bool, err error)) error {
	done := make(chan error, 1)
	go func() { done <- s.tries(ctx, what, step) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(s.grace)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("schema: %s %s: the server does not answer: %w", what, s.name, context.Cause(ctx))
	}
}

func (s *settings) tries(ctx context.Context, what string, step func(context.Context) (finished bool, err error)) error {
	var latest error
	try := func(ctx context.Context) error {
		for {
			finished, err := step(ctx)
			if err == nil && !finished {
				continue
			}
			if latest = err; again(err) {
				return retry.RetryableError(err)
			}
			return err
		}
	}
	pause := retry.WithJitterPercent(50, retry.WithCappedDuration(500*time.Millisecond, retry.NewExponential(20*time.Millisecond)))
	err := retry.Do(ctx, retry.WithMaxDuration(s.patience, pause), try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && latest != nil && !errors.Is(latest, context.Cause(ctx)):
		return fmt.Errorf("schema: %s %s: %w; the latest try: %w", what, s.name, context.Cause(ctx), latest)
	case again(err):
		return fmt.Errorf("schema: %s %s: gave up after %v: %w", what, s.name, s.patience, err)
	}
	return fmt.Errorf("schema: %s %s: %w", what, s.name, err)
}

// sqlState is the SQLSTATE in err's chain, or "".
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// As in internal/pgerr, which is not for this package: what drivers say of a connection string that they cannot parse repeats parts of it.
var (
	repeatsDSN = regexp.MustCompile(`(?i)://|password\s*=|connection (info )?string|wrong value for|cannot parse|don't know how to set|invalid connection protocol|unknown port`)
)

// hidden is an error whose text is not shown. errors.Is and errors.As see through it, as what it means for a retry stays.
type hidden struct{ err error }

func (hidden) Error() string {
	return "the connection failed; the error is not shown, as it repeats the connection string"
}
func (h hidden) Is(target error) bool { return errors.Is(h.err, target) }
func (h hidden) As(target any) bool   { return errors.As(h.err, target) }

func withoutDSN(err error) error {
	if err == nil || sqlState(err) != "" || !repeatsDSN.MatchString(err.Error()) {
		return err
	}
	return hidden{err}
}

// needs adds to the server's permission error what the role needs; other errors stay as they are.
func needs(what string, err error) error {
	if sqlState(err) == "42501" { // insufficient_privilege
		return fmt.Errorf("%w (the role needs %s)", err, what)
	}
	return err
}

// again reports whether err may be gone at the next try.
func again(err error) bool {
	switch sqlState(err) {
	case "":
	case "55P03", "40P01", "40001": // lock not available, deadlock, serialization failure
		return true
	case "23505", "42P06", "42P07", "42710", "42723": // two create the same: unique key, schema, table, object, function
		return true
	case "XX000": // "tuple concurrently updated", in the server's language
		return true
	case "57P01", "57P02", "57P03", "53300", "08000", "08003", "08006": // stopping, crashed, starting, full, connection lost
		return true
	default:
		return false
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return false // more likely a wrong name than a name server's bad day
	}
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
