package main

import (
	"context"
	"errors"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/relay"
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

var heldCase = benchCase{
	name: caseHeld, title: "5,000 tasks/s while a REPEATABLE READ transaction is held open", run: heldTransaction,
}

func heldTransaction(ctx context.Context, b *bench) error {
	set := relaySettings{Kind: kindBatch, Workers: 4, Batch: heldClaim, Listen: true}
	s := timedSide(sideHeldAll, 0, set)
	return b.with(ctx, s, func(d *database, c client) error { return b.heldWith(ctx, s, d, c) })
}

func (b *bench) heldWith(ctx context.Context, s side, d *database, c client) error {
	p := measure.NewProgress(1 << 30)
	stop, err := s.start(ctx, d.url, p.Done)
	if err != nil {
		return err
	}
	producing, cancel := context.WithCancel(ctx)
	defer cancel()
	produced := make(chan error, 1)
	go func() { produced <- produce(producing, c) }()
	if err := first(ctx, p); err != nil {
		return errors.Join(err, stop())
	}
	pause(ctx, b.plan.settle*2/3) // until it runs evenly
	release, err := hold(ctx, d.DB)
	if err != nil {
		return errors.Join(err, stop())
	}
	defer release()
	s.claims.take()
	offset, began := p.Elapsed(), time.Now()
	select {
	case err = <-produced:
	case <-time.After(b.plan.held):
		b.heldWindows(p.Windows(b.plan.heldWindow, offset, p.Elapsed()), s.claims.take(), began)
		cancel()
		err = <-produced
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	return nil
}

// heldWindows are the rates of the first and the last window, and the claims that ended in them.
func (b *bench) heldWindows(rates []float64, took []relay.Claim, began time.Time) {
	for w, side := range map[int]string{0: sideFirst, len(rates) - 1: sideLast} {
		var ms []float64
		for _, c := range took {
			if int(c.Start.Add(c.Duration).Sub(began)/b.plan.heldWindow) == w {
				ms = append(ms, float64(c.Duration.Microseconds())/1000)
			}
		}
		b.samples.Add(caseHeld, side, mRate, 0, rates[w])
		b.samples.Add(caseHeld, side, mClaimP50, 0, measure.Quantile(ms, 0.5))
		b.samples.Add(caseHeld, side, mClaimP99, 0, measure.Quantile(ms, 0.99))
	}
}

// produce enqueues at the even pace of heldRate until ctx ends.
func produce(ctx context.Context, c client) error {
	pace := time.NewTicker(time.Second * heldChunk / heldRate)
	defer pace.Stop()
	for began, sent := time.Now(), 0; ; {
		for due := int(time.Since(began).Seconds() * heldRate); sent+heldChunk <= due; sent += heldChunk {
			err := c.many(ctx, heldChunk)
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
