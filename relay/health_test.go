package relay_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox/relay"
)

func TestHealthOfARelayThatStopsOrNeverCameUp(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 1)
	begun := make(chan int64, 1)
	stopping, cancel := context.WithCancel(t.Context())
	r, err := relay.New(db.DB, held(begun), relay.Config{DrainTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(stopping) }()
	<-begun
	cancel()
	if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("while it drains: %v, want ErrNotRunning that says it is stopping", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	h := &heard{}
	nowhere := run(t, open(t, "postgres://127.0.0.1:1/nowhere?sslmode=disable"), all(),
		relay.Config{Observers: h.observers()})
	eventually(t, 10*time.Second, "an outage from the start", func() bool {
		return errors.Is(nowhere.Health(), relay.ErrOutage)
	})
	nowhere.Stop()
	if got, want := h.events(), []relay.Event{relay.EventStarted, relay.EventOutageBegan, relay.EventOutageEnded,
		relay.EventStopped}; !slices.Equal(got, want) {
		t.Errorf("observers heard %v, want %v", got, want)
	}
}

func TestARelayWithoutAHeartbeatIsNotHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		health, beat := relay.HealthWithoutHeartbeat()
		if err := health(); !errors.Is(err, relay.ErrNoHeartbeat) || !strings.Contains(err.Error(), "yet") {
			t.Errorf("before the first: %v", err)
		}
		beat()
		if err := health(); err != nil {
			t.Error(err)
		}
		time.Sleep(9900 * time.Millisecond)
		if err := health(); err != nil {
			t.Errorf("after 9.9 s: %v", err)
		}
		time.Sleep(2 * time.Second)
		if err := health(); !errors.Is(err, relay.ErrNoHeartbeat) || !strings.Contains(err.Error(), "for 11.9s") {
			t.Errorf("after 11.9 s: %v", err)
		}
	})
}
