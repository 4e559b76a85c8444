package outboxnats_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Events that cannot be sent, and events for a subject at its limit, hold up no other event. The first
// are dead letters that say why; the second have used attempts, and are published when there is room.
func TestRefusedEventsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	b, db, reg := newBroker(t), relaytest.NewDatabase(t), handlers.New()
	s := b.stream(func(c *jetstream.StreamConfig) {
		c.MaxMsgsPerSubject, c.Discard, c.DiscardNewPerSubject = 1, jetstream.DiscardNew, true
	})
	f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.To("orders.{key}"), forward.Handler(handlers.Keep(time.Hour), relaytest.RetrySoon()))
	var tasks []outbox.NewTask
	for i := range 20 {
		var opts []outbox.Option
		switch {
		case i%3 == 0:
			opts = append(opts, outbox.OrderedBy("full"))
		case i%3 == 1:
			opts = append(opts, outbox.OrderedBy(fmt.Sprint("free", i)), outbox.Headers(map[string]string{"trace id": "1"}))
		default:
			opts = append(opts, outbox.OrderedBy(fmt.Sprint("free", i)))
		}
		tasks = append(tasks, forwardtest.Placed.New(forwardtest.Payload{N: i}, opts...))
	}
	forwardtest.Must(t, outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
		return err
	}))
	leaves(relaytest.Run(t, db.DB, reg, relay.Config{}))
	relaytest.Eventually(t, time.Minute, "the others to be published", func() bool {
		return db.Int(t, `SELECT (SELECT count(*) FROM outbox.done_task) + (SELECT count(*) FROM outbox.dead_task) + count(*) FROM outbox.task WHERE attempt > 0`) == 15
	})
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "7 1" {
		t.Errorf("done tasks and attempts: %s, want 7 1", got)
	}
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.dead_task WHERE last_error LIKE '%"trace id" is no name of a header%'`); got != "7 1" {
		t.Errorf("dead letters that say why, and attempts: %s, want 7 1", got)
	}
	if got := db.Text(t, `SELECT concat(count(*), ' ', bool_or(last_error LIKE '%maximum messages per subject exceeded')) FROM outbox.task`); got != "6 t" {
		t.Errorf("waiting events, and whether the first says why: %s, want 6 t", got)
	}
	for range 6 {
		before := f.Stats().Published
		forwardtest.Must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject("orders.full")))
		relaytest.Eventually(t, time.Minute, "the next event of the subject", func() bool { return f.Stats().Published > before })
	}
	forwardtest.NothingLeft(t, db)
}
