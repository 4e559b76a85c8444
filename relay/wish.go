package relay

import (
	"context"
	"database/sql"
	"time"
)

// The wish for wake-ups: the second until which an idle relay wants a NOTIFY with each insert, in a sequence, which
// has no row versions and no snapshot.
const wishSQL = `/* outbox: ask to be woken */
SELECT setval('outbox.wake', GREATEST((SELECT last_value FROM outbox.wake),
                                      ceil(extract(epoch FROM clock_timestamp()) + $1::bigint / 1e6)::bigint))`

// Taken back by a relay that was woken or found work, if nobody asks for longer. The others that may still want it
// learn of it by the payload, and ask again if they are idle.
const unwishSQL = `/* outbox: no need to be woken */
SELECT setval('outbox.wake', 0), pg_notify($1, $3) FROM outbox.wake WHERE last_value BETWEEN 1 AND $2`

// ask sets the wish two polls ahead and returns it.
func (r *Relay) ask(ctx context.Context, conn *sql.Conn) (until int64, err error) {
	err = conn.QueryRowContext(ctx, r.sql(wishSQL), r.wishAhead().Microseconds()).Scan(&until)
	return until, err
}

func (r *Relay) wishAhead() time.Duration { return 2*r.config.PollInterval + 100*time.Millisecond }

func (r *Relay) takeBack(ctx context.Context, conn *sql.Conn, until int64) error {
	_, err := conn.ExecContext(ctx, r.sql(unwishSQL), r.config.Schema, until, r.id)
	return err
}
