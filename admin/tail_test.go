package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/tail"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

const tellingRelay = "01234567-89ab-cdef-0123-456789abcdef"

// event is a text as a relay sends it.
func event(name string, taskID, attempt int) string {
	return fmt.Sprintf(`{"r":"%s","e":[{"t":1700000000000000,"n":"%s","y":"MAIL","k":"tx","i":%d,"a":%d,"d":1500}]}`,
		tellingRelay, name, taskID, attempt)
}

const listener = "a_tail"

// listeners are the sessions of listenURL.
const listeners = `FROM pg_stat_activity WHERE datname = current_database() AND application_name = '` + listener + `'`

func listenURL(db *database) string { return db.URL + "&application_name=" + listener }

// tailing starts a tail that ends with the test, and returns its events one by one.
func tailing(t *testing.T, db *database) (next func() admin.TailEvent) {
	t.Helper()
	events, done := make(chan admin.TailEvent, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- client(t, db.DB).Tail(ctx, listenURL(db), admin.TailFilter{}, func(e admin.TailEvent) error {
			events <- e
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the tail ended with %v", err)
		}
	})
	return func() admin.TailEvent {
		t.Helper()
		select {
		case e := <-events:
			return e
		case err := <-done:
			done <- nil
			t.Fatalf("the tail ended with %v", err)
		case <-time.After(time.Minute):
			t.Fatal("the tail tells nothing")
		}
		panic("unreachable")
	}
}

// Any role can send a notification.
func TestATailIgnoresWhatNoRelaySends(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, tells) VALUES
			(gen_random_uuid(), 'new', 1, now() + interval '1 hour', '{}', true),
			(gen_random_uuid(), 'old', 1, now() + interval '1 hour', '{}', false),
			(gen_random_uuid(), 'dead', 1, now() - interval '1 hour', '{}', false)`)
		bury(t, db, "MAIL", "handler", "no such mailbox", 42, 1, 5)
		next := tailing(t, db)
		if e := next(); e.Event != admin.TailListening || e.Relays != 2 || e.Silent != 1 {
			t.Errorf("it begins with %+v", e)
		}
		send := func(text string) { db.Do(t, `SELECT pg_notify('outbox.tail', $1)`, text) }
		forged := []string{"", "?", "x", strings.Repeat("[", 7000), event("\\u001b[2J", 1, 1), event("done", -1, 1)}
		for _, text := range forged {
			send(text)
		}
		send(event("of_a_newer_version", 7, 3))
		e := next()
		if e.Event != "of_a_newer_version" || e.TaskID != 7 || e.Attempt != 3 || e.Type != "MAIL" ||
			e.Kind != outbox.KindTx ||
			e.Duration != 1500*time.Microsecond || e.RelayID != tellingRelay || !e.At.Equal(time.Unix(1700000000, 0)) {
			t.Errorf("an event is %+v", e)
		}
		send(strings.Replace(event("done", 8, 1), `"e":`, `"o":5,"e":`, 1))
		if e := next(); e.Event != admin.TailLeftOut || e.LeftOut != 5 || e.RelayID != tellingRelay {
			t.Errorf("left out is %+v", e)
		}
		if e := next(); e.Event != "done" || e.Error != "" {
			t.Errorf("an event is %+v", e)
		}
		attempt := db.Int(t, `SELECT attempt FROM outbox.dead_task`)
		for at, want := range map[int]string{attempt: "no such mailbox", attempt - 1: ""} {
			send(event("dead", 42, at))
			if e := next(); e.Error != want {
				t.Errorf("the error of attempt %d is %q, want %q", at, e.Error, want)
			}
		}
	})
}

func TestATailListensAgainAfterItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	next := tailing(t, db)
	if e := next(); e.Event != admin.TailListening {
		t.Errorf("it begins with %+v", e)
	}
	db.Do(t, `SELECT pg_terminate_backend(pid) `+listeners)
	if e := next(); e.Event != admin.TailDisconnected || e.Error == "" {
		t.Errorf("after the loss comes %+v", e)
	}
	if e := next(); e.Event != admin.TailListening {
		t.Errorf("then comes %+v", e)
	}
	db.Do(t, `SELECT pg_notify('outbox.tail', $1)`, event("done", 8, 1))
	if e := next(); e.Event != "done" {
		t.Errorf("then comes %+v", e)
	}
}

func TestATailThatHearsNothingSaysSo(t *testing.T) {
	t.Parallel()
	db, other := relaytest.NewDatabase(t), relaytest.NewDatabase(t)
	tell := func(admin.TailEvent) error { return errors.New("stop") }
	all := admin.TailFilter{}
	tx := client(t, db.DB).In(db.DB)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"another database": {client(t, db.DB).Tail(t.Context(), other.URL, all, tell), "did not arrive"},
		"no server": {client(t, db.DB).Tail(t.Context(), "postgres://u:secret@127.0.0.1:1/d?sslmode=disable", all, tell),
			"refused"},
		"no connection string": {client(t, db.DB).Tail(t.Context(), "postgres://u:se cret@[/d", all, tell), "not a DSN"},
		"an unknown event": {tx.Tail(t.Context(), db.URL, admin.TailFilter{Events: []string{"died"}}, tell),
			"use begun, done"},
		"an empty type": {tx.Tail(t.Context(), db.URL, admin.TailFilter{Types: []string{""}}, tell), "1 to 128"},
		"its own end":   {client(t, db.DB).Tail(t.Context(), db.URL, all, tell), "stop"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) || strings.Contains(c.err.Error(), "cret") {
			t.Errorf("%s: got %v, want %q", name, c.err, c.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, db.DB).Tail(ended, db.URL, all, tell); err != nil {
		t.Errorf("the end of ctx is the error %v", err)
	}
	if err := client(t, db.DB).In(nil).Tail(t.Context(), db.URL, all, tell); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("in a transaction: %v", err)
	}
}

// A listener that reads nothing has PostgreSQL keep all notifications: those of enqueues fail at its limit. So
// they are read while tell is busy. Of those beyond a bound the events are counted.
func TestATailThatIsHeldUpReadsOn(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	send := func(n int) {
		texts := tail.Encode(tail.Message{Relay: "0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50",
			Events: []tail.Event{{Name: "done", Type: "T", TaskID: 1}}})
		db.Do(t, `SELECT pg_notify($1, overlay($2 placing n::text from position('"i":1' in $2) + 4 for 1))
			FROM generate_series(1, $3) AS n`, tail.Channel("outbox"), texts[0], n)
	}
	told, leftOut := 0, int64(0)
	err := client(t, db.DB).Tail(t.Context(), listenURL(db), admin.TailFilter{}, func(e admin.TailEvent) error {
		switch e.Event {
		case admin.TailListening:
			send(admin.TailMost + 500)
		case admin.TailLeftOut:
			leftOut += e.LeftOut
		case "done":
			told++
		default:
			return fmt.Errorf("event %s", e.Event)
		}
		if told+int(leftOut) >= admin.TailMost+500 {
			return errors.New("stop")
		}
		return nil
	})
	if err == nil || err.Error() != "stop" || told+int(leftOut) != admin.TailMost+500 {
		t.Errorf("%d events are told and %d left out; it ended with %v", told, leftOut, err)
	}
}

func TestATailLeavesOutWhatItHasNoRoomFor(t *testing.T) {
	t.Parallel()
	text := tail.Encode(tail.Message{Relay: "0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50", LeftOut: 2,
		Events: []tail.Event{{Name: "done", Type: "T", TaskID: 1}, {Name: "done", Type: "T", TaskID: 2}}})[0]
	notified := make(chan *pq.Notification)
	texts, leftOut := admin.TailQueue(notified)
	for range admin.TailMost + 10 {
		notified <- &pq.Notification{Extra: text}
	}
	notified <- &pq.Notification{Extra: "no relay's"} // the ones before it are queued by now
	close(notified)
	kept := 0
	for got := range texts {
		if got == text {
			kept++
		}
	}
	if kept != admin.TailMost || leftOut() != 10*(2+2) {
		t.Errorf("%d are kept, and %d events left out", kept, leftOut())
	}
}
