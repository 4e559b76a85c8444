package kills_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/relaytest"
)

// F13: eight relay processes with one schedule; two of them are killed. The longer form is that of the issue.
func TestEachFiringEnqueuesOneTaskHoweverManyRelaysRunAndDie(t *testing.T) {
	t.Parallel()
	program, period, firings := "every 200 ms", 200*time.Millisecond, 20
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		program, period, firings = "every second", time.Second, 120
	}
	db := relaytest.NewDatabase(t)
	db.CreateFired(t)
	f := &relaytest.Fleet{DB: db, Program: program, Workers: 2}
	f.Start(t, 8)
	for killed := range 2 {
		relaytest.Eventually(t, 300*time.Second, "some firings", func() bool {
			return db.Int(t, `SELECT count(*) FROM fired`) >= firings*(killed+1)/3
		})
		_ = f.Processes()[0].Kill()
	}
	relaytest.Eventually(t, 300*time.Second, "all firings", func() bool { return db.Int(t, `SELECT count(*) FROM fired`) >= firings })
	eachFiringOnce(t, db, period, firings)
	if n := len(f.Processes()); n != 6 {
		t.Errorf("%d relays are left, want 6", n)
	}
}

// eachFiringOnce fails unless every multiple of the period, from the first to the last that there is, is there once.
func eachFiringOnce(t *testing.T, db *relaytest.Database, period time.Duration, least int) {
	t.Helper()
	got := db.Text(t, `SELECT count(*) || ' ' || count(DISTINCT run_at) || ' ' || round(extract(epoch FROM max(run_at) - min(run_at)) * 1000 / $1 + 1) ||
		' ' || count(*) FILTER (WHERE round(extract(epoch FROM run_at) * 1000) % $1 <> 0) FROM fired`, period.Milliseconds())
	var all, distinct, want, odd int
	if _, err := fmt.Sscan(got, &all, &distinct, &want, &odd); err != nil {
		t.Fatal(err)
	}
	if all != want || distinct != want || odd != 0 || want < least {
		t.Errorf("%d firings at %d times, want one at each of %d times, at least %d; %d are at odd times", all, distinct, want, least, odd)
	}
}
