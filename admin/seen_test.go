package admin_test

import (
	"testing"
	"time"
)

// A relay that was killed counts as alive until its leases end, but is not there.
func TestARelayWithoutHeartbeatsIsMissingBeforeItIsDead(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		for name, c := range map[string]struct {
			until          string // from now on
			alive, missing bool
		}{
			"fresh":   {"10 minutes", true, false},
			"missing": {"3 seconds", true, true},
			"dead":    {"-5 minutes", false, false},
		} {
			db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ($1, 'h', 7, clock_timestamp() + $2::interval, '{}')`, deadRelay, c.until)
			got, err := client(t, db.DB).Relays(t.Context())
			if err != nil || len(got) != 1 {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			r := got[0]
			if r.Alive != c.alive && name != "missing" || r.Missing != c.missing && r.Alive { // a busy machine may have needed 3 s
				t.Errorf("%s: alive %v, missing %v", name, r.Alive, r.Missing)
			}
			if d := r.AliveUntil.Sub(r.LastSeen); d != 10*time.Second {
				t.Errorf("%s: it was seen %v before the end of its life, want 10s", name, d)
			}
			db.Do(t, `DELETE FROM outbox.relay`)
		}
	})
}
