package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/timed"
)

const (
	caseClaim  = "claim"
	claimSize  = 10
	smallQueue = 10_000
	mClaimP50  = "claim p50, ms"
	mClaimP99  = "claim p99, ms"
	mClaims    = "claims"
)

func claimCase() benchCase {
	return benchCase{
		name: caseClaim, budget: 22, title: "the time of one claim at different backlogs", run: claimTimes,
		says: `The relay's own claim statement, timed in the driver from sending it to its last row: claims of 10
by one worker that does nothing, from a backlog that was just vacuumed. In order and in random
order. It says whether a large backlog makes claims slower; it does not say how many claims fit
into a second.`,
		metrics: []string{mClaimP50, mClaimP99, mClaims},
	}
}

// claimSide names what is timed.
func claimSide(backlog int, random bool) string {
	if random {
		return number(float64(backlog)) + " waiting, random"
	}
	return number(float64(backlog)) + " waiting, in order"
}

// backlogs are those of the plan, the least first.
func (p plan) backlogs() []int {
	if p.huge == p.large {
		return []int{smallQueue, p.large}
	}
	return []int{smallQueue, p.large, p.huge}
}

func claimTimes(ctx context.Context, b *bench) error {
	for round := range b.plan.rounds {
		for _, backlog := range b.plan.backlogs() {
			for _, random := range []bool{false, true} {
				if err := b.claimTurn(ctx, round, backlog, random); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bench) claimTurn(ctx context.Context, round, backlog int, random bool) error {
	s := oursSide(claimSide(backlog, random), backlog,
		relaySettings{Kind: kindBatch, Workers: 1, Batch: claimSize, Random: random, Driver: timed.Name})
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	if err := prewarm(ctx, d); err != nil {
		return err
	}
	timed.Take()
	p := measure.NewProgress(min(b.plan.claims*claimSize, backlog/2))
	stop, err := s.start(ctx, d.url, p.Done)
	if err != nil {
		return err
	}
	select {
	case <-p.Reached():
	case <-time.After(time.Minute):
		err = fmt.Errorf("%s: %d tasks within a minute", s.name, p.Count())
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	var ms []float64
	for _, c := range timed.Take() {
		ms = append(ms, float64(c.For.Microseconds())/1000)
	}
	ms = ms[min(len(ms), 10):] // the first ones build caches
	b.samples.Add(caseClaim, s.name, mClaimP50, round, measure.Quantile(ms, 0.5))
	b.samples.Add(caseClaim, s.name, mClaimP99, round, measure.Quantile(ms, 0.99))
	b.samples.Add(caseClaim, s.name, mClaims, round, float64(len(ms)))
	return nil
}

// prewarm reads the table and its indexes into the buffers, as a copy's are not there.
func prewarm(ctx context.Context, d *database) error {
	return d.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_prewarm`,
		`SELECT pg_prewarm('outbox.task'), pg_prewarm(i.indexrelid) FROM pg_index i WHERE i.indrelid = 'outbox.task'::regclass`)
}
