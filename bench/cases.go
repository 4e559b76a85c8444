package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	caseBurndown = "burndown"
	caseLarge    = "burndown-large"
	caseInsert   = "insert"
	caseDefaults = "defaults"
	caseLatency  = "latency"
	caseKeys     = "keys"
	caseEnqueue  = "enqueue"
	caseMany     = "enqueue-many"
	caseHeld     = "held"
	caseDead     = "dead-rows"
	caseIdle     = "idle"
	caseWAL      = "wal"
	caseForward  = "forward"
)

// cases are all cases, in the order in which they run.
var cases = []benchCase{
	{name: caseBurndown, title: "burn-down of 200,000 tasks that do nothing",
		sides: burndownSides, turn: burn(func(p plan) time.Duration { return p.burn })},
	{name: caseLarge, title: "burn-down of 1,000,000 tasks that do nothing, in windows of 5 s",
		rounds: 2, sides: largeSides, turn: burn(func(p plan) time.Duration { return p.long })},
	{name: caseInsert, title: "a handler that inserts one row, in the transaction that removes its task",
		sides: insertSides, turn: burn(func(p plan) time.Duration { return p.insert })},
	{name: caseDefaults, title: "default settings, with 10 and with 100 workers",
		sides: defaultsSides, turn: burn(func(p plan) time.Duration { return p.short })},
	{name: caseLatency, title: "from commit to handler start, on an idle queue", run: latency},
	{name: caseKeys, title: "from commit to handler start in one process, beside a key with 100,000 waiting tasks",
		sides: keysSides, turn: keysTurn},
	{name: caseEnqueue, title: "one task a transaction, from 8 connections, while a relay is busy",
		run: enqueueing},
	{name: caseMany, title: "5,000 tasks a call, one connection", sides: manySides, turn: manyTurn},
	{name: caseHeld, title: "5,000 tasks/s while a REPEATABLE READ transaction is held open", run: held},
	{name: caseDead, title: "dead rows beside an open transaction, from enqueue to done, at 800 tasks/s",
		rounds: 1, sides: deadSides, turn: deadTurn},
	{name: caseIdle, title: "relays that have nothing to do", rounds: 1, sides: idleSides, turn: idleTurn},
	{name: caseWAL, title: "WAL from enqueue to done", sides: walSides, turn: walTurn},
	{name: caseForward, title: "events from committed rows to the broker's acknowledgement",
		sides: forwardSides, turn: burn(func(p plan) time.Duration { return p.short })},
}

func caseNames() (names []string) {
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
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

// pause lets time pass that is measured or asked for: an idle relay, a load, the gap between two
// arrivals, the work of a handler. It ends early with ctx, whose end the next statement reports.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
