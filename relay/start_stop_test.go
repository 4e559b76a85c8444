package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// background returns a relay for Start and Stop, and its log.
func background(t *testing.T, db *database, reg *handlers.Registry, config relay.Config) (*relay.Relay, *records) {
	t.Helper()
	log := &records{}
	config.Logger = slog.New(slog.NewTextHandler(log, nil))
	r := unstarted(t, db, reg, config)
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Logf("at the end: %v", err)
		}
	})
	return r, log
}

// waiting is a handler that says when it begins and waits until it may end, whatever its context.
func waiting() (reg *handlers.Registry, begun chan struct{}, release func()) {
	begun, end := make(chan struct{}, 10), make(chan struct{})
	reg = handlers.New()
	each(reg, "TX", func(context.Context, *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-end
		return nil
	})
	return reg, begun, sync.OnceFunc(func() { close(end) })
}

func TestAStartedRelayWorksUntilItIsStopped(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, begun, release := waiting()
	defer release()
	r, log := background(t, db, reg, relay.Config{Workers: 1})
	noErr(t, r.Stop(t.Context())) // Stop of a relay that was never started
	db.Enqueue(t, "TX", 1)
	noErr(t, r.Start(t.Context()))
	noErr(t, r.Health())
	for name, again := range map[string]func(context.Context) error{"Start": r.Start, "Run": r.Run, "RunOnce": r.RunOnce} {
		if err := again(t.Context()); !errors.Is(err, relay.ErrRunning) {
			t.Errorf("%s of a relay that runs: %v, want ErrRunning", name, err)
		}
	}
	<-begun

	limit, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for n := range 2 {
		if err := r.Stop(limit); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop %d, while a handler runs: %v, want DeadlineExceeded", n+1, err)
		}
	}
	if err := r.Start(t.Context()); !errors.Is(err, relay.ErrRunning) {
		t.Errorf("Start, while it drains: %v, want ErrRunning", err)
	}
	relaytest.Eventually(t, time.Minute, "the relay stops", func() bool {
		return strings.Contains(log.String(), "relay stopping")
	})
	db.Enqueue(t, "TX", 1) // it claims no more, also when its only worker is free
	release()
	noErr(t, r.Stop(t.Context()))
	for range 10 {
		if err := r.Stop(limit); err != nil {
			t.Fatalf("Stop of a relay that has ended, with a context that has ended: %v", err)
		}
	}
	db.wantRows(t, 1, `outbox.task`)
	if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
		t.Errorf("after Stop: %v, want ErrNotRunning", err)
	}

	noErr(t, r.Start(t.Context()))
	db.Emptied(t, 20*time.Second)
	noErr(t, r.Stop(t.Context()))
	log.Want(t, 2, "outbox: relay stopped")
	log.Want(t, 0, "outbox: relay ended")
}

func TestAStartedRelayEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, begun, release := waiting()
	defer release()
	r, log := background(t, db, reg, relay.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	noErr(t, r.Start(ctx))
	db.Enqueue(t, "TX", 1)
	<-begun
	cancel()
	eventually(t, 10*time.Second, "it drains", func() bool { return log.Count("outbox: relay stopping") == 1 })
	release()
	noErr(t, r.Stop(t.Context()))
	db.wantRows(t, 0, `outbox.task`)
	noErr(t, r.Start(ctx)) // Start with a context that has ended
	eventually(t, 10*time.Second, "it does not run", func() bool { return errors.Is(r.Health(), relay.ErrNotRunning) })
}

func TestStopEndsRunAsWell(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r, log := background(t, db, all(), relay.Config{})
	ran := make(chan error)
	go func() { ran <- r.Run(context.Background()) }()
	eventually(t, 20*time.Second, "it runs", func() bool { return r.Health() == nil })
	noErr(t, r.Stop(t.Context()))
	noErr(t, <-ran)
	log.Want(t, 1, "outbox: relay stopped")
}

func TestStartAndStopMayBeCalledAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r, log := background(t, db, all(), relay.Config{})
	var all sync.WaitGroup
	var mu sync.Mutex
	refused := 0
	for range 4 {
		all.Go(func() {
			if err := r.Start(context.Background()); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if refused++; !errors.Is(err, relay.ErrRunning) {
					t.Errorf("Start: %v", err)
				}
			}
		})
	}
	all.Wait()
	if refused != 3 {
		t.Errorf("%d of 4 Starts are refused, want 3", refused)
	}
	for range 4 {
		all.Go(func() {
			if err := r.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if n := log.Count("outbox: relay stopped"); n != 1 {
				t.Errorf("Stop returned after %d ends of the relay, want 1", n)
			}
		})
	}
	all.Wait()
	for range 20 {
		all.Go(func() { _ = r.Start(context.Background()) })
		all.Go(func() { _ = r.Stop(t.Context()) })
	}
	all.Wait()
	noErr(t, r.Stop(t.Context()))
}

func TestStartReturnsTheErrorsOfTheStartAndWaitsForNoDatabase(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t)) // not migrated
	r, log := background(t, db, all(), relay.Config{})
	if err := r.Start(t.Context()); !errors.Is(err, schema.ErrNotMigrated) {
		t.Fatalf("got error %v, want ErrNotMigrated", err)
	}
	noErr(t, r.Stop(t.Context())) // Stop does not repeat the error of Start
	log.Want(t, 0, "relay ended")

	server, err := url.Parse(db.URL)
	noErr(t, err)
	gate, behind := db.proxied(t, relaytest.DriverName())
	gate.SendTo("127.0.0.1:1")
	r, log = background(t, behind, all(), relay.Config{})
	if err := r.Start(t.Context()); err != nil {
		t.Fatalf("while PostgreSQL is away: %v", err)
	}
	if err := r.Health(); !errors.Is(err, relay.ErrOutage) {
		t.Errorf("while PostgreSQL is away: Health is %v, want ErrOutage", err)
	}
	gate.SendTo(server.Host)
	<-r.Done()
	if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
		t.Errorf("after its end: Health is %v, want ErrNotRunning", err)
	}
	log.Want(t, 1, "outbox: relay ended")
	for range 2 {
		if err := r.Stop(t.Context()); !errors.Is(err, schema.ErrNotMigrated) ||
			!strings.Contains(log.String(), "run schema.Migrate") {
			t.Errorf("Stop: %v, want ErrNotMigrated, as in the log:\n%s", err, log)
		}
	}
}

func TestHealthOfARelayThatStopsOrNeverCameUp(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 1)
	begun := make(chan int64, 1)
	stopping, cancel := context.WithCancel(t.Context())
	r := unstarted(t, db, held(begun), relay.Config{DrainTimeout: 500 * time.Millisecond})
	done := make(chan error, 1)
	go func() { done <- r.Run(stopping) }()
	<-begun
	cancel()
	if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("while it drains: %v, want ErrNotRunning that says it is stopping", err)
	}
	noErr(t, <-done)

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
		noErr(t, health())
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
