package forward_test

import (
	"database/sql"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// No header of an app, however it was enqueued, sets an event's id or time.
func TestNoHeaderOfAnAppSetsAnEventsID(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	forward.Register(reg, placed, to)
	shipped := outbox.NewTaskType[forwardtest.Payload]("order.shipped")
	forward.Fanout(reg, shipped, map[string]forward.Target{"billing": {To: to}})
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := placed.Enqueue(t.Context(), tx, forwardtest.Payload{N: 1},
			outbox.Headers(map[string]string{"Outbox-Event-ID": "7"}))
		return err
	})
	if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), "Outbox-Event-ID") {
		t.Errorf("Enqueue: %v, want ErrInvalidOption that names the header", err)
	}
	const insert = `INSERT INTO outbox.task (task_type, payload, headers) VALUES ($1, '{"n": 1}', $2)`
	forged := `{"outbox-event-id": "7", "outbox-event-time": "2001-01-01T00:00:00Z", "mine": "1"}`
	db.Do(t, insert, "order.placed", forged)
	db.Do(t, insert, "order.shipped", forged)
	db.Do(t, insert, "order.shipped/billing", `{"outbox-event-id": "7", "mine": "1"}`)
	ids := db.Text(t, keysSQL)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	for _, e := range to.received() {
		if !strings.Contains(" "+ids+" ", " "+e.ID+" ") || e.Time.Year() < 2020 ||
			!maps.Equal(e.Headers, map[string]string{"mine": "1"}) {
			t.Errorf("event %s of %v with %v, want one of %s", e.ID, e.Time, e.Headers, ids)
		}
	}
	if n := len(to.received()); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

// What Register publishes Fanout copies: all headers and any payload that a task may have.
func TestFanoutCopiesWhatRegisterTakes(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	text := outbox.NewTaskType[string]("text")
	forward.Fanout(reg, text, map[string]forward.Target{"a": {To: to}, "b": {To: to}})
	header := map[string]string{"h": strings.Repeat("x", 4095)}
	relaytest.Must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := text.Enqueue(t.Context(), tx, strings.Repeat("y", 1<<20), outbox.Headers(header),
			outbox.MaxPayload(2<<20), outbox.OrderedBy("k"))
		return err
	}))
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
		VALUES ('text', to_jsonb(repeat('y', 1 << 20)), jsonb_build_object('h', repeat('x', 10000)))`)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	db.Want(t, "0", `SELECT concat(count(*), min(last_error)) FROM outbox.dead_task`)
	all := to.received()
	if len(all) != 4 {
		t.Fatalf("%d events, want 4", len(all))
	}
	for _, e := range all {
		if len(e.Data) != 1<<20+2 || len(e.Headers) != 1 || len(e.Headers["h"]) < 4095 {
			t.Errorf("event %s has %d bytes and %d headers", e.ID, len(e.Data), len(e.Headers))
		}
	}
}
