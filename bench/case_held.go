package main

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/timed"
)

const (
	caseHeld    = "held"
	heldRate    = 5000
	heldChunk   = 50
	heldClaim   = 64
	sideFirst   = "first window"
	sideLast    = "last window"
	sideHeldAll = "outbox Batch, 4 × 64"
)

func heldCase() benchCase {
	return benchCase{
		name: caseHeld, budget: 35, title: "5,000 tasks/s while a REPEATABLE READ transaction is held open", run: heldTransaction,
		says: `50 tasks are enqueued every 10 ms and worked off by a Batch handler that does nothing, in claims of 64 at most, while another transaction keeps vacuum from removing anything that dies:
the rate and the time of a claim, by the driver's clock, in windows. Each finished task leaves dead entries at the head of the queue. It does not say how long that goes well: the dead rows stay until the transaction ends.`,
		metrics: []string{mRate, mClaimP50, mClaimP99, mDead}, lines: "window ",
	}
}

func heldTransaction(ctx context.Context, b *bench) error {
	d, err := b.server.fresh(ctx, "empty ours", buildEmpty)
	if err != nil {
		return err
	}
	defer d.drop()
	length := b.plan.heldWindow
	total := b.plan.held
	p := measure.NewProgress(1 << 30)
	stop, err := startRelay(ctx, d.url, relaySettings{Kind: kindBatch, Workers: 4, Batch: heldClaim, Listen: true, Driver: timed.Name}, func(n int, _ load) { p.Done(n) })
	if err != nil {
		p.End()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() { produced <- produce(ctx, d.DB) }()
	pause(ctx, b.plan.settle*2/3) // until it runs evenly
	release, err := hold(ctx, d.DB)
	if err != nil {
		return err
	}
	timed.Take(timed.Claim)
	offset, began := p.Elapsed(), time.Now()
	for time.Since(began) < total && err == nil {
		select {
		case err = <-produced:
		case <-time.After(100 * time.Millisecond):
		}
	}
	ended := p.Elapsed()
	claims := timed.Take(timed.Claim)
	cancel()
	p.End()
	release()
	if stopErr := stop(); err != nil || stopErr != nil {
		return firstOf(err, stopErr)
	}
	b.heldWindows(p, claims, began, offset, ended, length)
	return b.leftovers(context.WithoutCancel(ctx), d, func(metric string, v float64) { b.samples.Add(caseHeld, sideHeldAll, metric, 0, v) })
}

func (b *bench) heldWindows(p *measure.Progress, claims []timed.Took, began time.Time, offset, ended, length time.Duration) {
	rates := p.Between(length, offset, ended)
	windows := len(rates)
	byWindow := make([][]float64, windows)
	for _, c := range claims {
		if w := int(c.At.Sub(began) / length); w >= 0 && w < windows {
			byWindow[w] = append(byWindow[w], float64(c.For.Microseconds())/1000)
		}
	}
	for w, rate := range rates {
		sides := []string{fmt.Sprintf("window %02d", w)}
		if w == 0 {
			sides = append(sides, sideFirst)
		}
		if w == windows-1 {
			sides = append(sides, sideLast)
		}
		for _, side := range sides {
			b.samples.Add(caseHeld, side, mRate, 0, rate)
			b.samples.Add(caseHeld, side, mClaimP50, 0, measure.Quantile(byWindow[w], 0.5))
			b.samples.Add(caseHeld, side, mClaimP99, 0, measure.Quantile(byWindow[w], 0.99))
		}
		b.samples.Add(caseHeld, sideHeldAll, windowMetric(w), 0, rate)
	}
}

// produce enqueues at the even pace of heldRate until ctx ends.
func produce(ctx context.Context, db *sql.DB) error {
	tasks := make([]outbox.NewTask, heldChunk)
	for i := range tasks {
		tasks[i] = benchTask.New(load{N: i})
	}
	pace := time.NewTicker(time.Second * heldChunk / heldRate)
	defer pace.Stop()
	began, sent := time.Now(), 0
	for {
		for due := int(time.Since(began).Seconds() * heldRate); sent+heldChunk <= due; sent += heldChunk {
			err := inTx(ctx, db, func(tx *sql.Tx) error {
				_, err := outbox.EnqueueMany(ctx, tx, tasks)
				return err
			})
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil
		}
	}
}
