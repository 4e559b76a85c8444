package relay

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lib/pq"
)

func TestAWantOfConnectionsIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		d := newRun(t.Context(), runParams{settings: settings{config: Config{Workers: 4}}, log: slog.New(slog.NewTextHandler(&log, nil)), now: time.Now}).dispatcher
		logged := func(when string, begins, ends int) {
			t.Helper()
			b, e := strings.Count(log.String(), "no connection left"), strings.Count(log.String(), "connections for all workers again")
			if b != begins || e != ends {
				t.Errorf("%s: %d records of the beginning and %d of the end, want %d and %d\n%s", when, b, e, begins, ends, &log)
			}
		}
		for n := range 2 {
			for range 2 {
				d.pollFailed(&pq.Error{Code: "53300"}, time.Now())
			}
			logged("two slots are refused", n+1, n)
			(<-d.events)()
			d.well(time.Now())
			logged("one slot is parked", n+1, n)
			(<-d.events)()
			time.Sleep(parkFor)
			d.well(time.Now())
			logged("all work", n+1, n+1)
		}
	})
}
