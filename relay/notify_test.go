package relay_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// F29: NOTIFY is paid for by idle relays alone. On a machine that is busy with something else
// relays may have nothing to do for a while, so it is tried again.
func TestEnqueuersBesideBusyRelaysSendHardlyANotification(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	for _, relays := range []int{1, 2} {
		t.Run(fmt.Sprint(relays, " relays"), func(t *testing.T) {
			db := newDatabase(t)
			for range relays {
				run(t, open(t, db.URL), all(), relay.Config{ListenDSN: db.URL})
			}
			listening(t, db)
			for try := 1; ; try++ {
				sent, of := notifications(t, db)
				db.Do(t, `TRUNCATE outbox.task`) // what the relays have not caught up with
				t.Logf("%d notifications by %d transactions", sent, of)
				if sent*100 < of {
					return
				}
				if try == 4 {
					t.Fatalf("%d of %d transactions sent a notification, want less than 1 %%", sent, of)
				}
			}
		})
	}
}

// notifications counts the wake-ups while eight sessions enqueue, and the transactions of these.
func notifications(t *testing.T, db *database) (sent, of int64) {
	t.Helper()
	l := pq.NewListener(db.URL, time.Second, time.Second, nil)
	defer l.Close()
	if err := l.Listen("outbox"); err != nil {
		t.Fatal(err)
	}
	const warmUp, length = time.Second, 2500 * time.Millisecond
	var commits atomic.Int64
	ctx, cancel := context.WithTimeout(context.Background(), warmUp+length)
	defer cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('TX', '{}')`)
				commits.Add(1)
			}
		})
	}
	<-time.After(warmUp) // until the relays, which were idle, are busy
	db.Do(t, `SELECT pg_notify('outbox', 'begin')`)
	before := commits.Load()
	wg.Wait()
	of = commits.Load() - before
	db.Do(t, `SELECT pg_notify('outbox', 'end')`)
	for n := range l.Notify {
		switch {
		case n == nil:
			t.Fatal("the listener was disconnected")
		case n.Extra == "":
			sent++
		case n.Extra == "begin":
			sent = 0
		case n.Extra == "end":
			return sent, of
		}
	}
	return sent, of
}
