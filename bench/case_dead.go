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
	mDeadTasks    = "of them in the table of tasks"
	mDeadRate     = "tasks/s"
)

var deadCase = benchCase{
	name: caseDead, budget: 22, title: "dead rows beside an open transaction, from enqueue to done, at 800 tasks/s",
	run: func(ctx context.Context, b *bench) error {
		once := *b
		once.plan.rounds = 1
		return benchCase{name: caseDead, sides: deadSides, turn: deadTurn}.measure(ctx, &once)
	},
	says: `Tasks are enqueued one by one at an even rate and worked off by handlers that do nothing, while
another transaction keeps its snapshot, so that vacuum removes nothing: how many rows are dead at
the end, by PostgreSQL's statistics, for each task that is done. It does not say how long they stay:
until that transaction ends and vacuum comes.`,
	metrics: []string{mDeadEach, mDeadTasks, mDeadRate},
}

func deadSides(plan) []side {
	return []side{
		oursSide(sideDeadOurs, 0, relaySettings{Kind: kindLeased, Listen: true}),
		riverSide(sideRiverBench, 0, river.Bench()),
	}
}

const deadRowsSQL = `/* bench: dead rows */
SELECT COALESCE(sum(n_dead_tup), 0), COALESCE(sum(n_dead_tup) FILTER (WHERE relname IN ('task', 'river_job')), 0)
  FROM pg_stat_user_tables`

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
	began := time.Now()
	tasks, err := repeat(ctx, deadEnqueuers, b.plan.dead, deadRate, c.one)
	for left := 1; err == nil && left > 0; {
		pause(ctx, 10*time.Millisecond)
		left, err = t.left(ctx, d.DB)
	}
	rate := float64(tasks) / time.Since(began).Seconds()
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	pause(ctx, 1200*time.Millisecond) // sessions tell their statistics once a second
	var all, inTasks float64
	if err := d.QueryRowContext(ctx, deadRowsSQL).Scan(&all, &inTasks); err != nil {
		return err
	}
	b.add(t, mDeadEach, all/float64(tasks))
	b.add(t, mDeadTasks, inTasks/float64(tasks))
	b.add(t, mDeadRate, rate)
	b.say("  %-34s round %d: %9.2f dead rows/task, %.2f of them in the table of tasks", t.name, t.round+1,
		all/float64(tasks), inTasks/float64(tasks))
	return nil
}
