package relaytest

import (
	"testing"
	"time"
)

// busy are sessions of the database that have a statement or a transaction open, which is what
// holds locks.
const busy = `SELECT COALESCE(string_agg(format('%s: %s', state, left(query, 200)), '; '), '') FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'`

// Idle checks I11 when all relays of the test have ended: no connection of its pool is in use, and
// no session of its database is in a transaction. A session whose client was killed, or has closed
// it, may take a moment to notice.
func (db *Database) Idle(t testing.TB) {
	t.Helper()
	deadline := time.After(endWithin)
	for {
		inUse, sessions := db.Stats().InUse, db.Text(t, busy)
		if inUse == 0 && sessions == "" {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Errorf("I11: %v after the end of the test %d connections are in use, and sessions are busy: %s", endWithin, inUse,
				sessions)
			return
		}
	}
}
