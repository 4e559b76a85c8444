package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/relay"
)

const (
	heldRate  = 5000
	heldChunk = 50
	sideFirst = "first window"
	sideLast  = "last window"
	mClaimP50 = "claim p50, ms"
	mClaimP99 = "claim p99, ms"
)

// hold opens a REPEATABLE READ transaction that has a snapshot, so that vacuum removes nothing that
// dies from now on.
func hold(ctx context.Context, db *sql.DB) (release func(), err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SELECT count(*) FROM pg_class`); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return func() { _ = tx.Rollback() }, nil
}

// held enqueues at an even pace while a relay runs.
func held(ctx context.Context, b *bench) error {
	s := oursSide("", 0, relaySettings{})
	return b.server.with(ctx, s, func(d *database, c client) error {
		p, took := measure.NewProgress(1<<30), &claims{}
		set := relaySettings{Kind: kindBatch, Workers: 4, Batch: 64, Listen: true}
		stop, err := startRelay(ctx, d.url, set, func(n int, _ load) { p.Done(n) },
			relay.Observer{Claimed: took.add})
		if err != nil {
			return err
		}
		producing, cancel := context.WithCancel(ctx)
		produced := make(chan error, 1)
		go func() {
			_, err := repeat(producing, 1, time.Hour, heldRate/heldChunk,
				func(ctx context.Context, _ int) error { return c.many(ctx, heldChunk) })
			if producing.Err() != nil {
				err = nil
			}
			produced <- err
		}()
		err = b.heldWindows(ctx, d, p, took)
		cancel()
		return errors.Join(err, <-produced, stop())
	})
}

// heldWindows waits until the relay runs evenly, holds a transaction, and adds the first and the
// last window: the rate, and the claims that ended in it.
func (b *bench) heldWindows(ctx context.Context, d *database, p *measure.Progress,
	took *claims) error {
	if err := first(ctx, p); err != nil {
		return err
	}
	pause(ctx, b.plan.settle*2/3)
	release, err := hold(ctx, d.DB)
	if err != nil {
		return err
	}
	defer release()
	offset, began := p.Elapsed(), time.Now()
	pause(ctx, b.plan.held)
	rates := p.Windows(b.plan.heldWindow, offset, p.Elapsed())
	for w, side := range map[int]string{0: sideFirst, len(rates) - 1: sideLast} {
		from := began.Add(time.Duration(w) * b.plan.heldWindow)
		ms := took.within(from, from.Add(b.plan.heldWindow))
		b.samples.Add(caseHeld, side, mRate, 0, rates[w])
		b.samples.Add(caseHeld, side, mClaimP50, 0, measure.Quantile(ms, 0.5))
		b.samples.Add(caseHeld, side, mClaimP99, 0, measure.Quantile(ms, 0.99))
	}
	return ctx.Err()
}

// claims are those of a relay that have taken tasks.
type claims struct {
	mu  sync.Mutex
	all []relay.Claim
}

func (c *claims) add(_ context.Context, one relay.Claim) {
	if one.Tasks == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, one)
}

// within is how many milliseconds each claim took that ended between two moments.
func (c *claims) within(from, to time.Time) (ms []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if end := one.Start.Add(one.Duration); !end.Before(from) && end.Before(to) {
			ms = append(ms, float64(one.Duration.Microseconds())/1000)
		}
	}
	return ms
}

const (
	deadRate      = 800
	deadEnqueuers = 4
	sideDeadOurs  = "outbox Leased"
	mDeadEach     = "dead rows/task"
)

func deadSides(plan) []side {
	return []side{
		oursSide(sideDeadOurs, 0, relaySettings{Kind: kindLeased, Listen: true}),
		riverSide(sideRiverBench, 0, river.Bench()),
	}
}

const deadRowsSQL = `/* bench: dead rows */
SELECT COALESCE(sum(n_dead_tup), 0) FROM pg_stat_user_tables`

func deadTurn(ctx context.Context, b *bench, t turn) error {
	return b.server.with(ctx, t.side, func(d *database, c client) error {
		d.SetMaxIdleConns(deadEnqueuers)
		release, err := hold(ctx, d.DB)
		if err != nil {
			return err
		}
		defer release()
		stop, err := t.start(ctx, d.url, func(int) {})
		if err != nil {
			return err
		}
		tasks, err := repeat(ctx, deadEnqueuers, b.plan.dead, deadRate, c.one)
		for left := 1; err == nil && left > 0; {
			pause(ctx, 10*time.Millisecond)
			left, err = t.left(ctx, d.DB)
		}
		if err = errors.Join(err, stop()); err != nil {
			return err
		}
		pause(ctx, 1200*time.Millisecond) // sessions tell their statistics once a second
		var dead float64
		if err := d.QueryRowContext(ctx, deadRowsSQL).Scan(&dead); err != nil {
			return err
		}
		b.add(t, mDeadEach, dead/float64(tasks))
		return nil
	})
}
