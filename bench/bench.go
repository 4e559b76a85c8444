package main

import (
	"context"
	"fmt"
	"io"
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
	budget      int // seconds of a quick run on two cores that nobody else uses
	sides       func(p plan) []side
	turn        func(ctx context.Context, b *bench, t turn) error
	run         func(ctx context.Context, b *bench) error
	says        string   // and does not say, for the report
	metrics     []string // the columns of its table
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
	for round := range b.plan.rounds {
		for _, s := range c.sides(b.plan) {
			if err := c.turn(ctx, b, turn{s, c.name, round}); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// say prints a line with the time since the start.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.out, "[%4.0f s] "+format+"\n", append([]any{time.Since(b.started).Seconds()}, args...)...)
}
