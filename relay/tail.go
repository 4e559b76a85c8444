package relay

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/tail"
	"github.com/txoutbox/outbox/internal/upkeep"
)

const (
	tailEvery   = 250 * time.Millisecond // between two sends
	tailMost    = 2000                   // events between two sends; more are left out
	tailTimeout = time.Second            // of a send: a NOTIFY may wait for the COMMIT of another one
	tailRest    = 3 * time.Second        // after one that failed
)

// teller tells outbox tail what happens to tasks, while somebody looks. It collects events in memory and sends
// them in a goroutine of its own, so no run waits for it.
type teller struct {
	relayID, channel string
	pool             *pg.Pool
	log              *slog.Logger
	ahead            func() time.Duration // PostgreSQL's clock less this process's
	started          time.Time

	until atomic.Int64  // ns since started; 0: nobody looks
	poke  chan struct{} // there are events

	mu      sync.Mutex
	events  []tail.Event
	leftOut int64
}

func newTeller(relayID, schema string, pool *pg.Pool, log *slog.Logger, ahead func() time.Duration) *teller {
	return &teller{relayID: relayID, channel: tail.Channel(schema), pool: pool, log: log, ahead: ahead,
		started: time.Now(), poke: make(chan struct{}, 1)}
}

// looked notes for how much longer somebody looks, as each heartbeat reads it.
func (t *teller) looked(left time.Duration) {
	until := int64(0)
	if left > 0 {
		until = int64(time.Since(t.started) + left)
	}
	t.until.Store(until)
}

// on reports whether somebody looks.
func (t *teller) on() bool {
	until := t.until.Load()
	return until != 0 && int64(time.Since(t.started)) < until
}

// add adds events, whose time is now.
func (t *teller) add(n int, event func(i int) tail.Event) {
	if !t.on() {
		return
	}
	at := time.Now().Add(t.ahead()).UnixMicro()
	t.mu.Lock()
	for i := range n {
		if len(t.events) == tailMost {
			t.leftOut += int64(n - i)
			break
		}
		e := event(i)
		e.At = at
		t.events = append(t.events, e)
	}
	t.mu.Unlock()
	report.Poke(t.poke)
}

func (t *teller) began(r report.Begun) {
	t.add(len(r.Tasks), func(i int) tail.Event {
		return tail.Event{Name: tail.Begun, Type: r.Type, Kind: string(r.Kind), TaskID: r.Tasks[i].ID,
			Attempt: r.Tasks[i].Attempt}
	})
}

func (t *teller) ended(e report.End) {
	t.add(len(e.Tasks), func(i int) tail.Event {
		one := e.Tasks[i]
		return tail.Event{Name: one.Outcome.String(), Type: e.Type, Kind: string(e.Kind), TaskID: one.ID,
			Attempt: one.Attempt, Took: e.Handled.Microseconds(), Reason: string(one.Reason)}
	})
}

func (t *teller) lost(r report.Lost) {
	t.add(1, func(int) tail.Event {
		return tail.Event{Name: tail.Lost, Type: r.Type, Kind: string(r.Kind), TaskID: r.TaskID, Attempt: r.Attempt}
	})
}

// tookOver tells of the leased runs of dead relays.
func (t *teller) tookOver(runs []upkeep.LostRun) {
	t.add(len(runs), func(i int) tail.Event {
		return tail.Event{Name: tail.Lost, Type: runs[i].Type, Kind: "leased", TaskID: runs[i].TaskID,
			Attempt: runs[i].Attempt}
	})
}

// run sends what is told until stop is closed, and then what is left.
func (t *teller) run(stop <-chan struct{}) {
	for {
		select {
		case <-t.poke:
		case <-stop:
			_ = t.send()
			return
		}
		pause := tailEvery
		for pause > 0 {
			select {
			case <-time.After(pause):
				pause = 0
			case <-stop:
				_ = t.send()
				return
			}
			if err := t.send(); err != nil {
				t.log.Debug("outbox: events for outbox tail were not sent", "error", pgerr.LogText(err))
				pause = tailRest
			}
		}
	}
}

const tellSQL = `/* outbox: tell outbox tail */
SELECT pg_notify($1, m), ` + pg.CommitAsync + ` FROM unnest($2::text[]) m`

// send sends what was collected. What cannot be sent is left out.
func (t *teller) send() error {
	t.mu.Lock()
	m := tail.Message{Relay: t.relayID, LeftOut: t.leftOut, Events: t.events}
	t.events, t.leftOut = nil, 0
	t.mu.Unlock()
	texts := tail.Encode(m)
	if len(texts) == 0 || !t.on() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), tailTimeout)
	defer cancel()
	err := t.pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, tellSQL, t.channel, pq.Array(texts))
		return err
	})
	if err != nil {
		t.mu.Lock()
		t.leftOut += m.LeftOut + int64(len(m.Events))
		t.mu.Unlock()
	}
	return err
}
