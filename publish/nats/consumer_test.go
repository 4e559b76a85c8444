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
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A consumer holds each event for so long that it is delivered again, to another one that is at
// work beside it. The inbox lets one of them have the effect.
func TestASlowConsumerHasEachEffectOnce(t *testing.T) {
	t.Parallel()
	const events = 20
	b, db := newBroker(t, nil), relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE bill (id text)`)
	s := b.stream(nil)
	p := connect(t, b.url())
	forwardtest.Ready(t, p)
	var all []*forward.Event
	for i := range events {
		all = append(all, event(strconv.Itoa(i)))
	}
	if errs := p.Publish(t.Context(), all); errs != nil {
		t.Fatal(errs)
	}
	consumer, err := s.CreateConsumer(t.Context(),
		jetstream.ConsumerConfig{Durable: "slow", AckPolicy: jetstream.AckExplicitPolicy,
			AckWait: 200 * time.Millisecond})
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
	relaytest.Eventually(t, time.Minute, "all events to be consumed",
		func() bool { return done.Load() == events && doubled.Load() >= events })
	if got := db.Text(t, `SELECT concat(count(*), ' ', count(DISTINCT id)) FROM bill`); got != "20 20" {
		t.Errorf("effects and different ones: %s, want 20 20", got)
	}
}

// Two targets of a Fanout may share a stream: none drops the other's event for a repetition.
func TestTargetsShareAStream(t *testing.T) {
	t.Parallel()
	b, db, reg := newBroker(t, nil), relaytest.NewDatabase(t), handlers.New()
	b.stream(nil)
	p := connect(t, b.url())
	forward.Fanout(reg, forwardtest.Placed, map[string]forward.Target{
		"billing":  {To: p, Opts: []forward.Option{forward.To("orders.billing")}},
		"shipping": {To: p, Opts: []forward.Option{forward.To("orders.shipping")}},
	})
	forwardtest.Enqueue(t, db, 0, 3, 3)
	leave(relaytest.Run(t, db.DB, reg, relay.Config{}))
	forwardtest.NothingLeft(t, db)
	got := map[string]int{}
	for _, m := range b.messages() {
		got[m.Subject()]++
	}
	if len(got) != 2 || got["orders.billing"] != 3 || got["orders.shipping"] != 3 {
		t.Errorf("messages by subject: %v, want 3 of each", got)
	}
}

// Two services say nothing of a source, and their events have the same task ids. A stream they
// share keeps both events, and a consumer handles both.
func TestServicesWithDefaultsShareAStream(t *testing.T) {
	t.Parallel()
	b, billing := newBroker(t, nil), relaytest.NewDatabase(t)
	b.stream(nil)
	for range 2 {
		db, reg := relaytest.NewDatabase(t), handlers.New()
		f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.To("orders.placed"))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, created_at)
			VALUES ('order.placed', '{"n": 0}', '2026-01-01')`)
		leave(relaytest.Run(t, db.DB, reg, relay.Config{}))
		relaytest.Eventually(t, time.Minute, "the event to be published",
			func() bool { return f.Stats().Published > 0 })
	}
	got := b.messages()
	if len(got) != 2 {
		t.Errorf("the stream has %d messages, want that of each service", len(got))
	}
	for _, m := range got {
		id, source := m.Headers().Get("ce-id"), m.Headers().Get("ce-source")
		forwardtest.Must(t, outbox.InTx(t.Context(), billing.DB, func(tx *sql.Tx) error {
			first, err := inbox.Once(t.Context(), tx, source, id)
			if !first {
				t.Errorf("the inbox drops event %s of %s", id, source)
			}
			return err
		}))
	}
}
