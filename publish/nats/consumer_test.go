package outboxnats_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

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
