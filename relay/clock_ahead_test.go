package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/relay"
)

// A request for wake-ups that lies hours ahead is no request, and is withdrawn with the next one.
func TestAWakeUpRequestOfAClockThatWasAheadIsWithdrawn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `SELECT setval('outbox.wake', extract(epoch FROM now() + interval '1 day')::bigint)`)
	run(t, db, all(), relay.Config{ListenDSN: db.URL})
	db.becomes(t, 30*time.Second, 1, "relays ask for wake-ups of the next seconds", `SELECT count(*) FROM outbox.wake
		WHERE last_value BETWEEN 1 AND extract(epoch FROM now()) + 7200`)
}
