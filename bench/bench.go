package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// bench is what the cases of one run share.
type bench struct {
	plan    plan
	server  *server
	samples *measure.Samples
	out     io.Writer
	started time.Time
}

// benchCase is one case. Its sides take turns in each round; or run does all that there is to do.
type benchCase struct {
	name, title string
	rounds      int // at most; 0: as many as the plan has
	sides       func(p plan) []side
	turn        func(ctx context.Context, b *bench, t turn) error
	run         func(ctx context.Context, b *bench) error
}

// turn is that of one side in one round.
type turn struct {
	side
	caseName string
	round    int
}

// add keeps what a turn measured.
func (b *bench) add(t turn, metric string, value float64) {
	b.samples.Add(t.caseName, t.name, metric, t.round, value)
}

func (c benchCase) measure(ctx context.Context, b *bench) error {
	if c.run != nil {
		return c.run(ctx, b)
	}
	rounds := b.plan.rounds
	if c.rounds > 0 {
		rounds = min(rounds, c.rounds)
	}
	for round := range rounds {
		for _, s := range c.sides(b.plan) {
			if err := c.turn(ctx, b, turn{s, c.name, round}); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// with calls do with a fresh database of the side's, and a client that enqueues in it.
func (b *bench) with(ctx context.Context, s side, do func(d *database, c client) error) error {
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
	return do(d, c)
}

// repeat calls do with 1, 2, … from so many goroutines for d: a rate's number in a second, or as often
// as it can. It returns how often do has succeeded.
func repeat(ctx context.Context, goroutines int, d time.Duration, rate int,
	do func(ctx context.Context, n int) error) (int, error) {
	var sent, done atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, goroutines)
	began := time.Now()
	for i := range goroutines {
		group.Go(func() {
			for errs[i] == nil && ctx.Err() == nil && time.Since(began) < d {
				n := int(sent.Add(1))
				if rate > 0 {
					at := time.Duration(n) * time.Second / time.Duration(rate)
					if at > d {
						return
					}
					pause(ctx, time.Until(began.Add(at)))
				}
				if errs[i] = do(ctx, n); errs[i] == nil {
					done.Add(1)
				}
			}
		})
	}
	group.Wait()
	return int(done.Load()), errors.Join(append(errs, ctx.Err())...)
}

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "[%4.0f s] "+format+"\n", append([]any{time.Since(b.started).Seconds()}, args...)...)
}
