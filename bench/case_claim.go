package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

const (
	caseClaim  = "claim"
	claimSize  = 10
	smallQueue = 10_000
	mClaimP50  = "claim p50, ms"
	mClaimP99  = "claim p99, ms"
)

var claimCase = benchCase{
	name: caseClaim, title: "the time of one claim at different backlogs",
	sides: claimSides, turn: claimTurn,
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

func claimSides(p plan) (all []side) {
	for _, backlog := range p.backlogs() {
		for _, random := range []bool{false, true} {
			all = append(all, timedSide(claimSide(backlog, random), backlog,
				relaySettings{Kind: kindBatch, Workers: 1, Batch: claimSize, Random: random}))
		}
	}
	return all
}

func claimTurn(ctx context.Context, b *bench, t turn) error {
	d, err := b.server.fresh(ctx, t.side)
	if err != nil {
		return err
	}
	defer d.drop()
	if err := prewarm(ctx, d); err != nil {
		return err
	}
	p := measure.NewProgress(min(b.plan.claims*claimSize, t.tasks/2))
	stop, err := t.start(ctx, d.url, p.Done)
	if err != nil {
		return err
	}
	select {
	case <-p.Reached():
	case <-time.After(time.Minute):
		err = fmt.Errorf("%d tasks within a minute", p.Count())
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	var ms []float64
	for _, c := range t.claims.take() {
		ms = append(ms, float64(c.Duration.Microseconds())/1000)
	}
	ms = ms[min(len(ms), 10):] // the first ones build caches
	b.add(t, mClaimP50, measure.Quantile(ms, 0.5))
	return nil
}

// prewarm reads the table and its indexes into the buffers, as a copy's are not there.
func prewarm(ctx context.Context, d *database) error {
	return d.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_prewarm`,
		`SELECT pg_prewarm('outbox.task'), pg_prewarm(i.indexrelid) FROM pg_index i
			WHERE i.indrelid = 'outbox.task'::regclass`)
}
