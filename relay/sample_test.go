package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A relay that runs notes the counts at once, one of several relays does so once a minute, and what
// is a day old is deleted.
func TestOneRelayOfAllSamplesTheCountsOnceAMinute(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "NOBODYS", 3)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('LATER', now() + interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.sample SELECT now() - h * interval '1 hour', 1, 1, 1, 1, 1, 1, 1, 1, 'OLD' FROM generate_series(1, 30) h`)
	db.Do(t, `INSERT INTO outbox.sample SELECT now() - interval '25 hours' - n * interval '1 second', 1, 1, 1, 1, 1, 1, 1, 1, 'MANY' FROM generate_series(1, 6000) n`)
	for range 3 {
		run(t, db, all(), relay.Config{})
	}
	noted := func() int { return db.Int(t, `SELECT count(*) FROM outbox.sample WHERE task_type = ''`) }
	eventually(t, 20*time.Second, "the counts are noted", func() bool { return noted() > 0 })
	db.want(t, 4007, "old rows are left", `SELECT count(*) FROM outbox.sample WHERE task_type IN ('OLD', 'MANY') AND at < now() - interval '24 hours'`)
	db.want(t, 23, "rows of the last day are left", `SELECT count(*) FROM outbox.sample WHERE task_type = 'OLD' AND at > now() - interval '24 hours'`)
	if due := db.Int(t, `SELECT extract(epoch FROM due_at - clock_timestamp())::int FROM outbox.maintenance WHERE job = 'sample'`); due < 30 || due > 60 {
		t.Errorf("the next one is due in %d s, want a minute", due)
	}
	db.Do(t, `UPDATE outbox.maintenance SET due_at = now() WHERE job = 'sample'`)
	eventually(t, 30*time.Second, "the counts are noted again", func() bool { return noted() == 2 })
	for taskType, want := range map[string]admin.Sample{"NOBODYS": {Ready: 3}, "LATER": {Scheduled: 1}, "": {Ready: 3, Scheduled: 1}} {
		got, err := relaytest.Admin(t, db.DB).Samples(t.Context(), taskType, time.Hour)
		if err != nil || len(got) != 2 {
			t.Fatalf("%q: %+v, %v; want two samples", taskType, got, err)
		}
		s := got[1]
		if s.Type != taskType || s.Ready != want.Ready || s.Scheduled != want.Scheduled || s.Leased+s.Waiting+s.Dead+s.Finished+s.Failed != 0 ||
			(s.OldestReady > 0) != (s.Ready > 0) || !s.At.After(got[0].At) {
			t.Errorf("%q: %+v, want %+v", taskType, s, want)
		}
	}
	if got, err := relaytest.Admin(t, db.DB).Samples(t.Context(), "OLD", 90*time.Minute); err != nil || len(got) != 1 {
		t.Errorf("of 90 minutes: %d samples, %v; want 1", len(got), err)
	}
}

// However many types there are, a sample has a thousand of them, and their sum all.
func TestASampleHasTheTypesWithMostTasks(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'T' || n FROM generate_series(1, 1500) n`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'T' || n, '{}' FROM generate_series(1001, 1500) n`)
	run(t, db, all(), relay.Config{})
	eventually(t, 20*time.Second, "the counts are noted", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.sample`) > 0 })
	if n, many := db.Int(t, `SELECT count(*) FROM outbox.sample`), db.Int(t, `SELECT count(*) FROM outbox.sample WHERE ready = 2`); n != 1001 || many != 500 {
		t.Errorf("%d rows, %d of them of types with two tasks; want 1,001 and 500", n, many)
	}
	if got, err := relaytest.Admin(t, db.DB).Samples(t.Context(), "", time.Hour); err != nil || len(got) != 1 || got[0].Ready != 2000 {
		t.Errorf("the sum: %+v, %v; want 2,000 ready tasks", got, err)
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

// What a relay may use at most is in its row.
func TestARelaysRowSaysWhatItMayUse(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	any, bounded := open(t, db.URL), open(t, db.URL)
	bounded.SetMaxOpenConns(17)
	run(t, any, all(), relay.Config{Workers: 3})
	run(t, bounded, all(), relay.Config{Workers: 10})
	db.becomes(t, 20*time.Second, 2, "both relays beat", `SELECT count(*) FROM outbox.relay`)
	relays, err := relaytest.Admin(t, db.DB).Relays(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]int{}
	for _, r := range relays {
		got[r.Workers] = r.Connections
	}
	if len(got) != 2 || got[3] != 0 || got[10] != 17 {
		t.Errorf("got %v, want 3 workers and any number of connections, 10 and 17", got)
	}
}
