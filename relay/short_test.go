package relay

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

func TestAWantOfConnectionsIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := &Relay{config: Config{Workers: 4}, log: slog.New(slog.NewTextHandler(&log, nil)), listener: &pg.Listener{}}
		r.runner = r.newRunner(t.Context(), t.Context())
		r.heart = r.newHeartbeat(time.Now)
		d := r.newDispatcher(context.Background(), false)
		logged := func(when string, begun, over int) {
			t.Helper()
			b, o := strings.Count(log.String(), "no connection left"), strings.Count(log.String(), "connections for all workers again")
			if b != begun || o != over {
				t.Errorf("%s: %d records of the beginning and %d of the end, want %d and %d\n%s", when, b, o, begun, over, &log)
			}
		}
		refuse := func(n int) {
			for range n {
				d.fail(&pq.Error{Code: "53300"}, time.Now())
			}
		}
		unpark := func() { (<-d.events)() }
		for n := range 2 {
			refuse(2)
			logged("refused", n+1, n)
			unpark()
			d.well(time.Now())
			logged("one slot is parked", n+1, n)
			unpark()
			d.well(time.Now())
			refuse(1)
			logged("the last one is refused again", n+1, n)
			unpark()
			time.Sleep(parkFor)
			d.well(time.Now())
			logged("all work", n+1, n+1)
		}
		if got := strings.Count(log.String(), "after=2s"); got != 2 { // three waits for a slot, and one of all at work
			t.Errorf("%d records say for how long it lasted, want 2\n%s", got, &log)
		}
	})
}
