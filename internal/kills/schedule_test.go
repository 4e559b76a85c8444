package kills_test

import (
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// F13: some relay processes with one schedule; two of them are killed. OUTBOX_TEST_LONG=1 has eight of them.
func TestEachFiringEnqueuesOneTaskHoweverManyRelaysRunAndDie(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	program, relays, period, firings := "every 200 ms", 4, 200*time.Millisecond, 12
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		program, relays, period, firings = "every second", 8, time.Second, 120
	}
	db := relaytest.NewDatabase(t)
	db.CreateFired(t)
	f := &relaytest.Fleet{DB: db, Program: program, Workers: 2, Hasten: true}
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

// eachFiringOnce fails unless every multiple of the period, from the first to the last that there is, is there once, when the tasks between
// them have run, too.
func eachFiringOnce(t *testing.T, db *relaytest.Database, period time.Duration) {
	t.Helper()
	const between = ` FROM fired WHERE run_at BETWEEN $1::timestamptz AND $2::timestamptz`
	first, last := db.Text(t, `SELECT min(run_at) FROM fired`), db.Text(t, `SELECT max(run_at) FROM fired`)
	want := db.Int(t, `SELECT round(extract(epoch FROM $2::timestamptz - $1::timestamptz) * 1000 / $3 + 1)::int`, first, last, period.Milliseconds())
	relaytest.Eventually(t, 2*time.Minute, "there is one at each time", func() bool {
		return db.Int(t, `SELECT count(DISTINCT run_at)`+between, first, last) == want
	})
	if n := db.Int(t, `SELECT count(*)`+between, first, last); n != want {
		t.Errorf("%d firings at %d times", n, want)
	}
	if n := db.Int(t, `SELECT count(*)`+between+` AND round(extract(epoch FROM run_at) * 1000) % $3 <> 0`, first, last, period.Milliseconds()); n != 0 {
		t.Errorf("%d firings are at odd times", n)
	}
}
