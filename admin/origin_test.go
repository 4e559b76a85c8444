package admin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestADatabaseInWhichRelaysLiveIsNotAdopted(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `SELECT outbox.note_origin('production')`)
		c := client(t, db.DB)
		before, err := c.Origin(t.Context())
		if err != nil || before.Environment != "production" || before.Copy || before.Problem != "" || before.Hidden {
			t.Errorf("%+v, %v", before, err)
		}
		adopt := func(o admin.AdoptOptions, want error, sameID bool) {
			t.Helper()
			a, err := c.Adopt(t.Context(), o)
			if !errors.Is(err, want) || err == nil && (a.DatabaseID == before.DatabaseID) != sameID {
				t.Errorf("%+v: got %+v, %v, want %v", o, a, err, want)
			}
		}
		for _, wrong := range []admin.AdoptOptions{
			{KeepID: true, Discard: true}, {Environment: "a\nb"}, {Environment: strings.Repeat("x", 129)},
		} {
			adopt(wrong, outbox.ErrInvalidOption, false)
		}
		// A relay that died while its server's clock was a day ahead lives no more, and holds up no adoption.
		addRelay(t, db, deadRelay, "1 day", "{A}")
		adopt(admin.AdoptOptions{Environment: "staging", KeepID: true}, nil, true)
		if o, err := c.Origin(t.Context()); err != nil || time.Until(o.LastSeen) > time.Hour {
			t.Errorf("the last heartbeat was at %v, %v", o.LastSeen, err)
		}
		db.Do(t, `DELETE FROM outbox.relay`)
		addRelay(t, db, liveRelay, "1 minute", "{A}")
		adopt(admin.AdoptOptions{}, admin.ErrNotCopy, false)
		adopt(admin.AdoptOptions{Environment: "staging"}, admin.ErrNotCopy, false)
		adopt(admin.AdoptOptions{Environment: "testing"}, admin.ErrRelaysLive, false)
		// The environment has another name from now on: nothing else changes.
		adopt(admin.AdoptOptions{Environment: "prod", KeepID: true}, nil, true)
		if n := db.Int(t, `SELECT count(*) FROM outbox.relay`); n != 1 {
			t.Errorf("%d relays", n)
		}
		// A copy has the heartbeats of its original, which may be young.
		db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
		o, err := c.Origin(t.Context())
		if err != nil || !o.Copy || !strings.HasPrefix(o.Problem, "this database may be a copy of ") {
			t.Errorf("%+v, %v", o, err)
		}
		adopt(admin.AdoptOptions{}, nil, false)
	})
}

// The second one would take leases from the relays that began after the first, and change the keys
// of what they run.
func TestOfTwoAdoptionsAtOnceOneSucceeds(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1`)
	tx := begin(t, db)
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
