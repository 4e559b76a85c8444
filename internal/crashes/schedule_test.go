package crashes_test

import (
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// F13: some relay processes with one schedule; two of them are killed. OUTBOX_TEST_LONG=1 has eight of them.
func TestEachFiringEnqueuesOneTaskHoweverManyRelaysRunAndDie(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	program, relays, period, firings := "every 200 ms", 4, 200*time.Millisecond, 12
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		program, relays, period, firings = "every second", 8, time.Second, 120
	}
	db := relaytest.NewDatabase(t)
	db.CreateFired(t)
	noteFirings(t, db)
	f := &fleet{DB: db, Program: program, Workers: 2, Hasten: true}
	f.Start(t, relays)
	for killed := range 2 {
		relaytest.Eventually(t, 300*time.Second, "some firings", func() bool {
			return len(f.Processes()) == relays-killed && db.Int(t, `SELECT count(*) FROM fired`) >= firings*(killed+1)/3
		})
		f.Processes()[0].Kill9()
	}
	relaytest.Eventually(t, 300*time.Second, "all firings", func() bool { return db.Int(t, `SELECT count(*) FROM fired`) >= firings })
	eachFiringOnce(t, db, period)
}

// noteFirings makes the table firing, which has each task when it is enqueued. The run_at that a handler sees is later
// than its firing where the task was put off, as one of two that ran when their relay was killed.
func noteFirings(t *testing.T, db *relaytest.Database) {
	t.Helper()
	db.Do(t, `CREATE TABLE firing (task_id bigint PRIMARY KEY, run_at timestamptz NOT NULL);
		CREATE FUNCTION note_firing() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  INSERT INTO public.firing VALUES (NEW.task_id, NEW.run_at) ON CONFLICT DO NOTHING;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER note_firing AFTER INSERT ON outbox.task FOR EACH ROW EXECUTE FUNCTION note_firing()`)
}

// eachFiringOnce fails unless every multiple of the period, from the first to the last that there is, was enqueued once, and each
// of these tasks has run once.
func eachFiringOnce(t *testing.T, db *relaytest.Database, period time.Duration) {
	t.Helper()
	last := db.Text(t, `SELECT max(run_at) FROM firing`)
	relaytest.Eventually(t, 2*time.Minute, "all that was enqueued has run", func() bool {
		return db.Int(t, `SELECT count(*) FROM firing WHERE run_at <= $1::timestamptz AND task_id NOT IN (SELECT task_id FROM fired)`, last) == 0
	})
	const upTo = ` FROM firing WHERE run_at <= $1::timestamptz`
	want := db.Int(t, `SELECT round(extract(epoch FROM max(run_at) - min(run_at)) * 1000 / $2 + 1)::int`+upTo, last, period.Milliseconds())
	if n, times := db.Int(t, `SELECT count(*)`+upTo, last), db.Int(t, `SELECT count(DISTINCT run_at)`+upTo, last); n != want || times != want {
		t.Errorf("%d firings at %d times, want one at each of %d", n, times, want)
	}
	if n := db.Int(t, `SELECT count(*)`+upTo+` AND round(extract(epoch FROM run_at) * 1000) % $2 <> 0`, last, period.Milliseconds()); n != 0 {
		t.Errorf("%d firings are at odd times", n)
	}
	if n := db.Int(t, `SELECT count(*) - count(DISTINCT task_id) FROM fired`); n != 0 {
		t.Errorf("%d tasks have run twice", n)
	}
}
