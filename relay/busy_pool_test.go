package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// holdAll takes all connections of a pool, and returns what gives them back. until is called again
// and again meanwhile.
func holdAll(t *testing.T, pool *database, until func()) (release func()) {
	t.Helper()
	limit := pool.Stats().MaxOpenConnections
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := make(chan *sql.Conn)
	const calls = 50 // that wait, so that the relay rarely gets one
	for range calls {
		go func() {
			conn, _ := pool.Conn(ctx)
			taken <- conn
		}()
	}
	var held []*sql.Conn
	deadline := time.After(time.Minute)
	for len(held) < limit {
		select {
		case conn := <-taken:
			held = append(held, conn)
		case <-time.After(200 * time.Millisecond):
			until()
		case <-deadline:
			t.Fatalf("only %d connections of %d", len(held), limit)
		}
	}
	cancel()
	for range calls - limit {
		if conn := <-taken; conn != nil {
			_ = conn.Close()
		}
	}
	return func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}
}

// That a relay waits for its pool is no outage of PostgreSQL: before its start, and where it has
// lost all connections, also that of its heartbeat.
func TestARelayThatWaitsForItsPoolSaysSo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"it starts", "it works"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, h := newDatabase(t), &heard{}
			pool := open(t, db.URL)
			pool.SetMaxOpenConns(3)
			r := prepare(t, pool, all(), relay.Config{Workers: 1, Observers: h.observers()})
			kill := func() {}
			if name == "it works" {
				r.Start()
				relaytest.Healthy(t, r, "at first")
				kill = func() {
					db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE datname = current_database() AND pid <> pg_backend_pid()`)
				}
			}
			release := holdAll(t, pool, kill)
			defer release()
			if name == "it starts" {
				r.Start()
			}
			db.Enqueue(t, "TX", 3)
			eventually(t, time.Minute, "it waits for its pool", func() bool { return errors.Is(r.Health(), relay.ErrPoolBusy) })
			const text = "3 of at most 3 (SetMaxOpenConns), and the relays of this process on it (1) need 3: raise the limit"
			if err := r.Health(); errors.Is(err, relay.ErrOutage) || !strings.Contains(err.Error(), text) {
				t.Errorf("Health: %v", err)
			}
			r.Log.Want(t, 1, "the relay waits for a connection of its *sql.DB")
			release()
			relaytest.Healthy(t, r, "with connections")
			db.Emptied(t, time.Minute)
			r.Stop()
			r.Log.Want(t, 1, "the relay has a connection of its *sql.DB again")
			r.Log.Want(t, 0, outageBegins)
			if got := len(h.events()); got != 4 {
				t.Errorf("observers heard %v", h.events())
			}
		})
	}
}

// Relays of one pool count each other.
func TestAPoolThatIsTooSmallForAnotherRelayIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool := open(t, db.URL)
	pool.SetMaxOpenConns(20)
	config := relay.Config{Workers: 10}
	first, second := prepare(t, pool, all(), config), prepare(t, pool, all(), config)
	first.Start()
	relaytest.Healthy(t, first, "alone")
	const want = "limited to 20 connections (SetMaxOpenConns), but this relay needs 12, " +
		"and those that run on it (1) need 12: use SetMaxOpenConns(24)"
	if _, err := relay.New(pool.DB, all(), config); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
	if _, err := relay.New(open(t, db.URL).DB, all(), config); err != nil {
		t.Errorf("on another pool: %v", err)
	}
	second.Start()
	relaytest.Healthy(t, second, "beside the first")
	second.Log.Want(t, 1, want)
	second.Stop()
	for _, limit := range []int{24, 12} {
		if pool.SetMaxOpenConns(limit); limit == 12 {
			first.Stop()
		}
		if _, err := relay.New(pool.DB, all(), config); err != nil {
			t.Errorf("with %d connections: %v", limit, err)
		}
	}
	first.Log.Want(t, 0, want)
}
