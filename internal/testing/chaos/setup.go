//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/txoutbox/outbox/internal/testing/chaos/app"
)

const relays = 4 // processes

// settings are those of the servers. A standby is to be back soon, as commits wait for it, and
// finds the WAL that it missed.
var settings = map[string]string{
	"fsync": "on", "max_connections": "150", "wal_retrieve_retry_interval": "100ms",
	"wal_receiver_status_interval": "1s", "max_wal_size": "256MB", "wal_keep_size": "1GB",
}

// newArena starts all that a run needs. The caller must call close, also after an error.
func newArena(ctx context.Context, o options, dir string) (*arena, error) {
	a := &arena{dir: dir, cluster: &cluster{failovers: o.has("failover")}}
	log, err := os.Create(filepath.Join(dir, "faults.log"))
	if err != nil {
		return a, err
	}
	a.cleanup(func() { _ = log.Close() })
	a.tally = newTally(log)
	if fakesClock(o) {
		if err := fakeClock(a); err != nil {
			return a, err
		}
	}
	a.cleanup(a.cluster.close)
	if err := a.cluster.start(ctx, settings); err != nil {
		return a, err
	}
	if o.has("unreadable") {
		if err := a.do(`CREATE EXTENSION pg_surgery`); err != nil {
			return a, fmt.Errorf("the fault unreadable: %w", err)
		}
	}
	if o.has("rewrite") {
		if err := prepareRewrites(a); err != nil {
			return a, fmt.Errorf("the fault rewrite: %w", err)
		}
	}
	a.cleanup(a.broker.close)
	if err := a.broker.start(ctx, dir); err != nil {
		return a, err
	}
	for i := range relays {
		s, err := newSeatOf(a,
			o, app.Config{Role: app.RoleRelay, Name: fmt.Sprint("relay-", i), Dawdle: dawdle(o), DawdleFor: dawdleFor(o)})
		if err != nil {
			return a, err
		}
		a.relays = append(a.relays, s)
	}
	for i := range o.producers {
		s, err := newSeatOf(a, o, app.Config{Role: app.RoleProducer, Name: fmt.Sprint("p", i),
			Seed: o.seed + uint64(i), Tasks: (o.tasks + o.producers - 1) / o.producers})
		if err != nil {
			return a, err
		}
		a.producers = append(a.producers, s)
	}
	return a, nil
}

func newSeatOf(a *arena, o options, c app.Config) (*seat, error) {
	c.Driver, c.Dir, c.Group = o.driver, a.dir, o.group
	c.Broker, c.BrokerPassword = a.broker.url(), a.broker.file
	s, err := newSeat(a.address(), a.url, c)
	if err == nil {
		a.cleanup(s.close)
	}
	return s, err
}

// dawdle is of how many leased tasks one dawdles.
func dawdle(o options) int64 {
	if o.has("kill") {
		return 500 // tasks that were lost three times run alone, each for its 8 s
	}
	return 50
}

// dawdleFor is for how long it dawdles.
func dawdleFor(o options) time.Duration {
	if o.only("standby") {
		return 25 * time.Second // longer than a lease lives without a heartbeat, and a standby is away
	}
	return 8 * time.Second
}
