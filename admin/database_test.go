package admin_test

import (
	"context"
	"errors"
	"slices"
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

func TestReindexBuildsAllIndexesAnew(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Enqueue(t, "TX", 20_000)
	db.Do(t, `DELETE FROM outbox.task`)
	db.Do(t, `VACUUM outbox.task`)
	// What a build that broke leaves behind.
	db.Do(t, `CREATE INDEX task_lane_ccnew ON outbox.task (task_id)`)
	db.Do(t, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.task_lane_ccnew'::regclass`)
	done, err := client(t, db.DB).Reindex(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := db.Int(t, `SELECT count(*) FROM pg_indexes WHERE schemaname = 'outbox'`); len(done) != want {
		t.Errorf("%d indexes were built, there are %d: %+v", len(done), want, done)
	}
	if !slices.ContainsFunc(done, func(i admin.Index) bool { return i.Table == "task" && i.BytesAfter < i.BytesBefore }) {
		t.Errorf("no index became smaller: %+v", done)
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_class WHERE relname LIKE '%_cc%'`); n != 0 {
		t.Errorf("%d broken indexes are left", n)
	}
}

func TestReindexSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	_, err := client(t, db.DB, admin.Config{Schema: "nothing"}).Reindex(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no outbox in this schema") {
		t.Errorf("in no outbox: got %v", err)
	}
	db.Hold(t, `LOCK TABLE outbox.counter IN ACCESS EXCLUSIVE MODE`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := client(t, db.DB).Reindex(ctx)
		ended <- err
	}()
	relaytest.Eventually(t, 20*time.Second, "it waits for the lock", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE 'REINDEX %counter_pkey%'`) > 0
	})
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), `"outbox"."counter_pkey"`) {
		t.Errorf("got %v, want an error that names the index", err)
	}
}
