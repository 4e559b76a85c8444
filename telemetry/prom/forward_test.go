package outboxprom_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

// broker answers by what is in an event.
type broker struct{}

func (broker) Publish(_ context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		switch text := string(e.Data); {
		case strings.Contains(text, "2"):
			errs[i] = forward.Permanent(errors.New("too large"))
		case strings.Contains(text, "3"):
			errs[i] = errors.New("a hiccup")
		case strings.Contains(text, "4"):
			errs[i] = forward.Unavailable(errors.New("away"), time.Hour)
		}
	}
	return errs
}

func TestForwardersHaveMetrics(t *testing.T) {
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, relaytest.TypeTx, broker{})
	_, registry := newCollector(t, outboxprom.Config{Forwarders: []*forward.Forwarder{f}})
	db.Enqueue(t, "TX", 5)
	relaytest.Once(t, db.DB, reg, relay.Config{})
	got := values(t, registry)
	for name, want := range map[string]float64{"published": 2, "permanent": 1, "temporary": 1, "unavailable": 1} {
		if got["outbox_events_total TX "+name] != want {
			t.Errorf("%s: %v, want %v", name, got["outbox_events_total TX "+name], want)
		}
	}
	db.Do(t, `UPDATE outbox.task SET run_at = now() WHERE payload->>'n' = '4'`)
	relaytest.Once(t, db.DB, reg, relay.Config{}) // alone, so that nothing passes
	got = values(t, registry)
	if pause := got["outbox_publisher_pause_seconds TX"]; pause < 3000 || pause > 3600 {
		t.Errorf("the pause is %v s, want an hour", pause)
	}
	lint(t, registry)
	_, err := outboxprom.New(outboxprom.Config{Forwarders: []*forward.Forwarder{f, nil, f}})
	if err == nil || !strings.Contains(err.Error(), "Forwarders: 1 is nil") ||
		!strings.Contains(err.Error(), "2 is a second one of the type TX") {
		t.Errorf("nil and a second one: %v", err)
	}
}
