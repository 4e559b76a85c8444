package outboxnats_test

import (
	"database/sql"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// A consumer holds each event for so long that it is delivered again, to another one that is at work
// beside it. The inbox lets one of them have the effect.
func TestASlowConsumerHasEachEffectOnce(t *testing.T) {
	t.Parallel()
	const events = 20
	b, db := newBroker(t), relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE bill (id text)`)
	s := b.stream(nil)
	p := connect(t, b.url())
	ready(t, p)
	var all []*forward.Event
	for i := range events {
		all = append(all, event(strconv.Itoa(i)))
	}
	if errs := p.Publish(t.Context(), all); errs != nil {
		t.Fatal(errs)
	}
	consumer, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "slow", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 200 * time.Millisecond})
	forwardtest.Must(t, err)
	var (
		again   [events]chan struct{} // closed by the second delivery
		done    atomic.Int64
		doubled atomic.Int64
	)
	for i := range again {
		again[i] = make(chan struct{})
	}
	handle := func(m jetstream.Msg) error {
		id := m.Headers().Get("ce-id")
		i, err := strconv.Atoi(id)
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.NumDelivered == 2 {
			close(again[i])
		}
		first := false
		err = outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) (err error) {
			if first, err = inbox.Once(t.Context(), tx, m.Headers().Get("ce-source"), id); err != nil || !first {
				return err
			}
			<-again[i]
			_, err = tx.ExecContext(t.Context(), `INSERT INTO bill VALUES ($1)`, id)
			return err
		})
		switch {
		case err != nil:
			return err
		case first:
			done.Add(1)
		default:
			doubled.Add(1)
		}
		return m.Ack()
	}
	got, err := consumer.Consume(func(m jetstream.Msg) {
		go func() {
			if err := handle(m); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		}()
	})
	forwardtest.Must(t, err)
	defer got.Stop()
	relaytest.Eventually(t, time.Minute, "all events to be consumed", func() bool { return done.Load() == events && doubled.Load() >= events })
	if got := db.Text(t, `SELECT concat(count(*), ' ', count(DISTINCT id)) FROM bill`); got != "20 20" {
		t.Errorf("effects and different ones: %s, want 20 20", got)
	}
}
