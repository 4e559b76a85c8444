package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/bench/river"
)

const (
	sideEnqueue    = "outbox Enqueue"
	sideBare       = "bare INSERT"
	sideHeld       = "outbox Enqueue, beside a held snapshot"
	sideBareHeld   = "bare INSERT, beside a held snapshot"
	sideRiverTx    = "River InsertTx"
	sidePrepared   = "raw: prepared INSERT"
	sideEnqueuePgx = "outbox Enqueue, on pgx"
	sidePreparePgx = "raw: prepared INSERT, on pgx"

	enqueuers   = 8
	busyType    = "BUSY"
	busyBacklog = 100_000 // tasks that the busy relay works off meanwhile
	mSpeed      = "transactions/s"
)

func enqueueing(ctx context.Context, b *bench) error {
	work := 2 * time.Millisecond
	ours := oursSide("", busyBacklog, relaySettings{})
	ours.key, ours.build = "enqueue", buildOurs(busyType, busyBacklog)
	relay := childSettings{Relays: 1, Set: relaySettings{
		Kind: kindLeased, Workers: 4, Type: busyType, Pause: work, Listen: true}}
	set := river.Bench()
	set.Workers = 4
	worker := childSettings{River: &set, Set: relaySettings{Pause: work}}
	for round := range b.plan.rounds {
		err := b.beside(ctx, ours, relay, func(d *database) error {
			compared := []side{{name: sideEnqueue, open: oursClient}, {name: sideBare, open: bareClient}}
			held := []side{{name: sideHeld, open: oursClient}, {name: sideBareHeld, open: bareClient}}
			if round%2 == 1 {
				slices.Reverse(compared)
				slices.Reverse(held)
			}
			compared = append(compared, side{name: sidePrepared, open: preparedClient},
				side{name: sideEnqueuePgx, open: onPgx(oursClient)}, side{name: sidePreparePgx, open: onPgx(preparedClient)})
			if err := b.hammer(ctx, round, d, compared...); err != nil {
				return err
			}
			release, err := hold(ctx, d.DB)
			if err != nil {
				return err
			}
			defer release()
			return b.hammer(ctx, round, d, held...)
		})
		if err != nil {
			return err
		}
		err = b.beside(ctx, riverSide("", busyBacklog, river.Settings{}), worker, func(d *database) error {
			return b.hammer(ctx, round, d, side{name: sideRiverTx, open: riverClient})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// beside calls do with a database of the side's on which a child works.
func (b *bench) beside(ctx context.Context, s side, set childSettings,
	do func(d *database) error) error {
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	d.SetMaxIdleConns(enqueuers)
	set.URLs = []string{d.url}
	busy, err := startProcess(ctx, set)
	if err != nil {
		return err
	}
	defer busy.Stop()
	return do(d)
}

// hammer lets each of the sides go on for the plan's time, after a tenth of it that does not count.
func (b *bench) hammer(ctx context.Context, round int, d *database, sides ...side) error {
	for _, s := range sides {
		c, err := s.open(ctx, d)
		if err == nil {
			_, err = repeat(ctx, enqueuers, b.plan.enqueue/10, 0, c.one)
		}
		began, n := time.Now(), 0
		if err == nil {
			n, err = repeat(ctx, enqueuers, b.plan.enqueue, 0, c.one)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		b.samples.Add(caseEnqueue, s.name, mSpeed, round, float64(n)/time.Since(began).Seconds())
	}
	return nil
}

const (
	manySize      = 5000
	sideMany      = "outbox EnqueueMany"
	sideUnnest    = "bare INSERT … SELECT FROM unnest"
	sideRiverFast = "River InsertManyFast (COPY)"
)

func manySides(plan) []side {
	ours, bare := oursSide(sideMany, 0, relaySettings{}), oursSide(sideUnnest, 0, relaySettings{})
	bare.open = bareClient
	return []side{ours, bare, riverSide(sideRiverFast, 0, river.Settings{})}
}

func manyTurn(ctx context.Context, b *bench, t turn) error {
	return b.server.with(ctx, t.side, func(_ *database, c client) error {
		if err := c.many(ctx, manySize); err != nil { // connects, and does not count
			return err
		}
		before, began := cpuTime(), time.Now()
		for range b.plan.many / manySize {
			if err := c.many(ctx, manySize); err != nil {
				return err
			}
		}
		rate := float64(b.plan.many) / time.Since(began).Seconds()
		b.add(t, mRate, rate)
		b.add(t, mCPU, perTask(cpuTime()-before, b.plan.many))
		b.say("  %-34s round %d: %9.0f tasks/s", t.name, t.round+1, rate)
		return nil
	})
}
