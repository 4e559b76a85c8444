package relay_test

import (
	"context"
	"errors"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestARelayThatEndedSaysSo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, begun, release := waiting()
	defer release()
	r, _ := background(t, db, reg, relay.Config{})
	first := r.Done()
	ended := func(done <-chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	if err := r.Stop(t.Context()); err != nil || ended(first) {
		t.Errorf("before Start: it has ended: %v; Stop: %v", ended(first), err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Enqueue(t, "TX", 1)
	<-begun
	stopped := make(chan error)
	go func() { stopped <- r.Stop(context.Background()) }()
	if err := r.Run(t.Context()); !errors.Is(err, relay.ErrRunning) || ended(first) || r.Done() != first {
		t.Errorf("while a handler runs: it has ended: %v; Run: %v", ended(first), err)
	}
	release()
	<-first
	db.wantRows(t, 0, `outbox.task`)
	if n := db.Stats().InUse; n != 0 || !errors.Is(r.Health(), relay.ErrNotRunning) {
		t.Errorf("after the end: %d connections are in use, Health is %v", n, r.Health())
	}
	if err := <-stopped; err != nil || r.Done() != first {
		t.Errorf("Stop: %v; another channel before the next Start: %v", err, r.Done() != first)
	}

	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := r.Done(); ended(second) {
		t.Error("after the second Start it has ended")
	}
	if err := r.Stop(t.Context()); err != nil || !ended(r.Done()) {
		t.Errorf("Stop: %v; it has ended: %v", err, ended(r.Done()))
	}
	if err := r.RunOnce(t.Context()); err != nil || !ended(r.Done()) {
		t.Errorf("RunOnce: %v; it has ended: %v", err, ended(r.Done()))
	}
}

func TestARelayThatCannotWorkSaysThatItEnded(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t)) // not migrated
	for name, call := range map[string]func(*relay.Relay, context.Context) error{
		"Start": (*relay.Relay).Start, "Run": (*relay.Relay).Run, "RunOnce": (*relay.Relay).RunOnce,
	} {
		r, _ := background(t, db, all(), relay.Config{})
		done := r.Done()
		if err := call(r, t.Context()); !errors.Is(err, schema.ErrNotMigrated) {
			t.Errorf("%s: %v, want ErrNotMigrated", name, err)
		}
		<-done
	}
}
