package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func pretend(hour int) {
	now = func() time.Time { return time.Date(2026, 1, 1, hour, 30, 0, 0, time.UTC) }
}

// By day at most two of ten workers make reports, by night eight; all tasks are done.
func TestReportsHaveTheNight(t *testing.T) {
	for hour, most := range map[int]int{12: 2, 23: 8} {
		pretend(hour)
		var out strings.Builder
		if err := run(t.Context(), pgtest.Database(t), &out); err != nil {
			t.Fatal(err)
		}
		var mails, reports int
		if _, err := fmt.Sscanf(out.String(), "%d mails; at most %d of 10", &mails, &reports); err != nil || mails != 10 ||
			reports < 1 || reports > most {
			t.Errorf("at %d o'clock it printed %q, %v; want at most %d", hour, out.String(), err, most)
		}
	}
}

func TestReportsHaveTheirShare(t *testing.T) {
	for hour, share := range map[int]int{5: 8, 6: 2, 21: 2, 22: 8} {
		pretend(hour)
		for running, want := range map[int][]int{1: {share - 1, 0}, 8: {0, 9}} {
			got := (&hours{relay.Fair()}).Choose(relay.View{Free: 9, Workers: 10, Types: 2, Heads: []relay.Head{
				{Type: "MAKE_REPORT", Kind: "leased", Priority: -1, Room: 9, Running: running, Likely: 9},
				{Type: "SEND_MAIL", Kind: "leased", Room: 9, Likely: 1},
			}})
			if !slices.Equal(got, want) {
				t.Errorf("at %d o'clock, with %d reports: reports and mails get %v, want %v", hour, running, got, want)
			}
		}
	}
}
