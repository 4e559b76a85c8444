package main

import (
	"context"
	"fmt"
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

func manyCase() benchCase {
	return benchCase{
		name: caseMany, budget: 22, title: "5,000 tasks a call, one connection", run: enqueueMany,
		says: `Calls of 5,000 tasks, each in a transaction, one after the other on one connection, nothing else
going on. All sides start from Go values, so encoding them as JSON is included. The bare statement
goes through lib/pq into a table with the same columns, checks and indexes and no trigger, and
does not return the ids, as EnqueueMany does. River is on pgx; InsertManyFast uses COPY and
returns no ids either.`,
		metrics: []string{mRate, mCPU, mAllocs},
	}
}

func enqueueMany(ctx context.Context, b *bench) error {
	ours, bare := oursSide(sideMany, 0, relaySettings{}), oursSide(sideUnnest, 0, relaySettings{})
	bare.open = bareClient
	for round := range b.plan.rounds {
		for _, s := range []side{ours, bare, riverSide(sideRiverFast, 0, river.Settings{})} {
			if err := b.manyTurn(ctx, round, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) manyTurn(ctx context.Context, round int, s side) error {
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	c, err := s.open(ctx, d)
	if err != nil {
		return err
	}
	defer c.close()
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
	cpu, mallocs, _ := perTask(before, usageNow(), b.plan.many)
	b.samples.Add(caseMany, s.name, mRate, round, rate)
	b.samples.Add(caseMany, s.name, mCPU, round, cpu)
	b.samples.Add(caseMany, s.name, mAllocs, round, mallocs)
	b.say("  %-34s round %d: %9.0f tasks/s", s.name, round+1, rate)
	return nil
}
