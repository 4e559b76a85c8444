package main

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseMany      = "enqueue-many"
	manySize      = 5000
	sideMany      = "outbox EnqueueMany"
	sideUnnest    = "bare INSERT … SELECT FROM unnest"
	sideRiverFast = "River InsertManyFast (COPY)"
)

var manyCase = benchCase{
	name: caseMany, title: "5,000 tasks a call, one connection",
	sides: manySides, turn: manyTurn,
}

func manySides(plan) []side {
	ours, bare := oursSide(sideMany, 0, relaySettings{}), oursSide(sideUnnest, 0, relaySettings{})
	bare.open = bareClient
	return []side{ours, bare, riverSide(sideRiverFast, 0, river.Settings{})}
}

func manyTurn(ctx context.Context, b *bench, t turn) error {
	return b.with(ctx, t.side, func(_ *database, c client) error {
		if err := c.many(ctx, manySize); err != nil { // connects, and does not count
			return err
		}
		before, began := usageNow(), time.Now()
		for range b.plan.many / manySize {
			if err := c.many(ctx, manySize); err != nil {
				return err
			}
		}
		rate := float64(b.plan.many) / time.Since(began).Seconds()
		cpu := perTask(before, usageNow(), b.plan.many)
		b.add(t, mRate, rate)
		b.add(t, mCPU, cpu)
		b.say("  %-34s round %d: %9.0f tasks/s", t.name, t.round+1, rate)
		return nil
	})
}
