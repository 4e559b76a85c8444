package main

import (
	"context"
	"errors"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseDead      = "dead-rows"
	deadRate      = 800
	deadEnqueuers = 4
	sideDeadOurs  = "outbox Leased"
	mDeadEach     = "dead rows/task"
)

var deadCase = benchCase{
	name: caseDead, title: "dead rows beside an open transaction, from enqueue to done, at 800 tasks/s",
	rounds: 1, sides: deadSides, turn: deadTurn,
}

func deadSides(plan) []side {
	return []side{
		oursSide(sideDeadOurs, 0, relaySettings{Kind: kindLeased, Listen: true}),
		riverSide(sideRiverBench, 0, river.Bench()),
	}
}

const deadRowsSQL = `/* bench: dead rows */
SELECT COALESCE(sum(n_dead_tup), 0) FROM pg_stat_user_tables`

func deadTurn(ctx context.Context, b *bench, t turn) error {
	return b.with(ctx, t.side, func(d *database, c client) error { return b.deadRows(ctx, t, d, c) })
}

func (b *bench) deadRows(ctx context.Context, t turn, d *database, c client) error {
	d.SetMaxIdleConns(deadEnqueuers)
	release, err := hold(ctx, d.DB)
	if err != nil {
		return err
	}
	defer release()
	p := measure.NewProgress(int(b.plan.dead.Seconds() * deadRate))
	stop, err := t.start(ctx, d.url, p.Done)
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
}
