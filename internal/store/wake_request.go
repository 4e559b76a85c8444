package store

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// A wake-up request is the second until which an idle relay wants a NOTIFY with each insert. It is
// in a sequence, which has no row versions and no snapshot. One that lies hours ahead was written while
// the server's clock was, and counts as none.
const requestWakeUpSQL = `/* outbox: request wake-ups */
SELECT setval('outbox.wake', GREATEST((SELECT last_value FROM outbox.wake WHERE last_value < extract(epoch FROM clock_timestamp()) + 7200),
                                      ceil(extract(epoch FROM clock_timestamp()) + $1::bigint / 1e6)::bigint)), ` + pg.CommitAsync

// A relay that was woken or found work withdraws the request, unless another relay has set a later
// one. The others that may still rely on it learn of that by the payload, and request wake-ups
// again if they are idle.
const withdrawWakeUpSQL = `/* outbox: withdraw the request for wake-ups */
SELECT setval('outbox.wake', 0), pg_notify($1, $3), ` + pg.CommitAsync + ` FROM outbox.wake WHERE last_value BETWEEN 1 AND $2 OR last_value > extract(epoch FROM clock_timestamp()) + 7200`

// RequestWakeUp sets the wake-up request so far ahead and returns it.
func (s *Store) RequestWakeUp(ctx context.Context, conn pg.Querier, ahead time.Duration) (until int64, err error) {
	err = conn.QueryRowContext(ctx, s.SQL(requestWakeUpSQL), ahead.Microseconds()).Scan(&until, new(string))
	return until, err
}

// WithdrawWakeUp takes the request back, unless another relay has set a later one.
func (s *Store) WithdrawWakeUp(ctx context.Context, conn pg.Querier, until int64) error {
	_, err := conn.ExecContext(ctx, s.SQL(withdrawWakeUpSQL), string(s.Schema), until, s.RelayID)
	return err
}
