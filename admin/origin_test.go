package admin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestADatabaseInWhichRelaysLiveIsNotAdopted(t *testing.T) {
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `SELECT outbox.note_origin('production')`)
		c := client(t, db.DB)
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES (gen_random_uuid(), 'h', 1, now() + interval '1 minute', '{A}')`)
		for _, environment := range []string{"", "production"} {
			if _, err := c.Adopt(t.Context(), admin.AdoptOptions{Environment: environment}); !errors.Is(err, admin.ErrNotCopy) {
				t.Errorf("%q: %v", environment, err)
			}
		}
		if _, err := c.Adopt(t.Context(), admin.AdoptOptions{Environment: "staging"}); !errors.Is(err, admin.ErrRelaysLive) {
			t.Errorf("with a relay: %v", err)
		}
		before, err := c.Origin(t.Context())
		if err != nil || before.Environment != "production" || before.Copy || before.Problem != "" || before.Hidden {
			t.Errorf("%+v, %v", before, err)
		}
		// The environment has another name from now on: nothing else changes.
		renamed, err := c.Adopt(t.Context(), admin.AdoptOptions{Environment: "prod", KeepID: true})
		if err != nil || renamed.DatabaseID != before.DatabaseID {
			t.Errorf("%+v, %v", renamed, err)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.relay`); n != 1 {
			t.Errorf("%d relays", n)
		}
		// A copy has the heartbeats of its original, which may be young.
		db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
		if o, err := c.Origin(t.Context()); err != nil || !o.Copy || !strings.HasPrefix(o.Problem, "this database is a copy of ") {
			t.Errorf("%+v, %v", o, err)
		}
		adopted, err := c.Adopt(t.Context(), admin.AdoptOptions{})
		if err != nil || adopted.DatabaseID == before.DatabaseID {
			t.Errorf("%+v, %v", adopted, err)
		}
		for _, wrong := range []admin.AdoptOptions{{KeepID: true, Discard: true}, {Environment: "a\nb"}, {Environment: strings.Repeat("x", 129)}} {
			if _, err := c.Adopt(t.Context(), wrong); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
	})
}

// A snapshot may have the heartbeat of a relay that died while its server's clock was a day ahead. No
// relay runs in it that would correct the row.
func TestABeatOfAClockThatWasAheadHoldsUpNoAdoption(t *testing.T) {
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `SELECT outbox.note_origin('production')`)
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES (gen_random_uuid(), 'h', 1, now() + interval '1 day', '{A}')`)
		c := client(t, db.DB)
		if o, err := c.Origin(t.Context()); err != nil || time.Until(o.LivedAt) > time.Hour {
			t.Errorf("the last heartbeat was at %v, %v", o.LivedAt, err)
		}
		if _, err := c.Adopt(t.Context(), admin.AdoptOptions{Environment: "staging"}); err != nil {
			t.Errorf("Adopt: %v", err)
		}
	})
}

// The second one would take leases from the relays that began after the first, and change the keys
// of what they run.
func TestOfTwoAdoptionsAtOnceOneSucceeds(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), `SELECT outbox.adopt(false, false, '')`); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := client(t, db.DB).Adopt(t.Context(), admin.AdoptOptions{Discard: true})
		second <- err
	}()
	const waits = `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.origin'::regclass
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	for len(second) == 0 && db.Int(t, waits) == 0 {
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; !errors.Is(err, admin.ErrNotCopy) {
		t.Errorf("the second one: %v", err)
	}
}
