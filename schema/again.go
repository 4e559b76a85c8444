package schema

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// repeat does step until it has finished, and again where that may help. It returns in any case
// some time after ctx has ended: a driver may wait for a dead peer beyond its context, and Commit
// has none. Then the goroutine is left behind until the connection fails.
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
	where := "schema: " + what + " " + s.name
	err := retry.Do(ctx, retry.WithMaxDuration(s.patience, pause), try)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && latest != nil && !errors.Is(latest, context.Cause(ctx)):
		return pgerr.Within(where, fmt.Errorf("%w; the latest try: %w", context.Cause(ctx), latest))
	case again(err):
		return pgerr.Within(where, fmt.Errorf("gave up after %v: %w", s.patience, err))
	}
	return pgerr.Within(where, err)
}

// again reports whether err may be gone at the next try.
func again(err error) bool {
	if errors.Is(err, ErrStatementPooling) { // it wraps the driver's error
		return false
	}
	switch pgerr.Code(err) {
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
