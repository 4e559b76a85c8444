package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

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
