package outboxwebhook

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A relay and a publisher at their defaults deliver an event to an endpoint that takes 100 ms, one
// after the other: alone, and while 40 events wait for an endpoint that hangs for 30 s.
func TestAnEndpointThatHangsDelaysNoOther(t *testing.T) {
	needs.Timing(t)
	const events, most = 60, 1.1
	took := map[bool]time.Duration{}
	for _, beside := range []bool{false, true} {
		delivered, ended := make(chan struct{}, events), make(chan struct{})
		s := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hangs" {
				select {
				case <-time.After(30 * time.Second):
				case <-r.Context().Done():
				case <-ended:
				}
				return
			}
			time.Sleep(100 * time.Millisecond) // what the endpoint takes
			delivered <- struct{}{}
		})
		db, reg := relaytest.NewDatabase(t), handlers.New()
		p := newPublisher(t, s, func(*Config) {})
		p.wait = defaultWait
		forward.Register(reg, forwardtest.Placed, p, forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
			return s.URL + "/" + e.Headers["to"], nil
		}))
		r := relaytest.Run(t, db.DB, reg, relay.Config{ListenDSN: db.URL})
		r.Leaves("net/http.(*persistConn)")
		r.Leaves("publish/webhook.(*Publisher)")
		enqueue := func(to string) {
			db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
				VALUES ($1, '{}', jsonb_build_object('to', $2::text))`,
				forwardtest.Placed.Name(), to)
		}
		for n := 0; beside && n < 40; n++ {
			enqueue("hangs")
		}
		began := time.Now()
		for range events {
			enqueue("answers")
			<-delivered
		}
		took[beside] = time.Since(began)
		close(ended)
		r.Stop()
	}
	t.Logf("%d events took %v alone, %v beside an endpoint that hangs", events, took[false], took[true])
	if float64(took[true]) > most*float64(took[false]) {
		t.Errorf("more than %v times as long", most)
	}
}
