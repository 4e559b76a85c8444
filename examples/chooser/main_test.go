package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func hourOf(n int) func() time.Time {
	return func() time.Time { return time.Date(2026, 1, 1, n, 30, 0, 0, time.UTC) }
}

// By day at most two of ten workers make reports, by night eight; all tasks are done.
func TestReportsHaveTheNight(t *testing.T) {
	t.Parallel()
	for hour, most := range map[int]int{12: 2, 23: 8, 5: 8, 6: 2} {
		var out strings.Builder
		if err := run(t.Context(), pgtest.Database(t), hourOf(hour), &out); err != nil {
			t.Fatal(err)
		}
		ok := false
		for n := 1; n <= most; n++ {
			ok = ok || strings.HasPrefix(out.String(), "10 mails; at most "+string(rune('0'+n))+" of 10")
		}
		if !ok {
			t.Errorf("at %d o'clock: %s, want at most %d", hour, out.String(), most)
		}
	}
}

func TestShares(t *testing.T) {
	t.Parallel()
	night := share{from: 22, to: 6, within: 80, beside: 20}
	for hour, want := range map[int]int{21: 20, 22: 80, 0: 80, 5: 80, 6: 20} {
		if got := night.at(hour); got != want {
			t.Errorf("at %d: %d percent, want %d", hour, got, want)
		}
	}
	c := newHours(hourOf(12), map[string]share{"REPORT": night})
	heads := []relay.Head{{Type: "MAIL", Kind: "leased", Room: 1}, {Type: "REPORT", Kind: "leased", Room: 10, Running: 2}}
	for range 20 {
		if got := c.Choose(relay.View{Heads: heads, Free: 8, Workers: 10, Types: 2}); len(got) != 2 || got[0] != 1 || got[1] != 0 {
			t.Fatalf("got %v, want only the mail: reports have their share", got)
		}
	}
}
