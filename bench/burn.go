package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

// The sides of the cases that burn down. Each works off tasks that were there before.
const (
	sideBatch      = "outbox Batch, 4 × 1,000"
	sideLeased     = "outbox Leased, 1,000 workers"
	sideTx         = "outbox Tx, 10 workers"
	sideRawBatch   = "raw claims, 4 × 1,000"
	sideRawLeased  = "raw lease pairs, 4 × 256"
	sideRiverBench = "River, its benchmark's settings"
	sideWatermill  = "watermill-sql queue"

	sideBatchLarge = "outbox Batch, 4 × 1,000, of 1,000,000"
	sideRawLarge   = "raw claims, 4 × 1,000, of 1,000,000"

	sideInsertTx10    = "outbox Tx, 10 workers"
	sideInsertTx50    = "outbox Tx, 50 workers"
	sideInsertRaw10   = "raw transactions, 10 connections"
	sideInsertRiver10 = "River, 10 workers, tuned"
	sideInsertRiver50 = "River, 50 workers, tuned"
	sideInsertBatch   = "outbox Batch, 4 × 1,000"
	sideInsertRawMany = "raw transactions, 4 × 1,000"
	sideComplete      = "outbox Complete, 30 workers"
	sideGroup32       = "outbox Tx, GroupCommit(32)"
	sideGroup8        = "outbox Tx, GroupCommit(8)"
	sideRawGroup32    = "raw transactions, 10 × 32, each deleted in its turn"

	sideDefaultTx        = "outbox Tx, 10 workers"
	sideDefaultBatch     = "outbox Batch of 100, 10 workers"
	sideDefaultLeased    = "outbox Leased, 10 workers"
	sideDefaultRiver     = "River, 10 workers"
	sideDefaultTx100     = "outbox Tx, 100 workers"
	sideDefaultBatch100  = "outbox Batch of 100, 100 workers"
	sideDefaultLeased100 = "outbox Leased, 100 workers"
	sideDefaultRiver100  = "River, 100 workers"
)

// groupWithin lets groups of 32 be full on a busy machine.
const groupWithin = 100 * time.Millisecond

// The good settings of each kind for work that takes no time.
var (
	batchSettings  = relaySettings{Kind: kindBatch, Workers: 4, Batch: 1000}
	leasedSettings = relaySettings{Kind: kindLeased, Workers: 1000}
	txSettings     = relaySettings{Kind: kindTx, Workers: 10}
	rawBatch       = raw.Settings{Workers: 4, Batch: 1000}
	rawLeased      = raw.Settings{Workers: 4, Batch: 256, Leased: true}
)

func burndownSides(p plan) []side {
	n := p.backlog
	return []side{
		oursSide(sideBatch, n, batchSettings),
		riverSide(sideRiverBench, n, river.Bench()),
		rawSide(sideRawBatch, n, rawBatch),
		watermillSide(sideWatermill, n),
		oursSide(sideLeased, n, leasedSettings),
		rawSide(sideRawLeased, n, rawLeased),
		oursSide(sideTx, n, txSettings),
	}
}

func largeSides(p plan) []side {
	return []side{
		oursSide(sideBatchLarge, p.large, batchSettings),
		rawSide(sideRawLarge, p.large, rawBatch),
	}
}

func insertSides(p plan) []side {
	ours := func(name string, set relaySettings) side {
		set.Insert = true
		return oursSide(name, p.backlog, set)
	}
	bare := func(name string, set raw.Settings) side {
		set.Insert = true
		return rawSide(name, p.backlog, set)
	}
	tuned := func(name string, workers int) side { // for workers that use connections
		set := river.Bench()
		set.Workers, set.MaxConns, set.Insert = workers, workers+10, true
		return riverSide(name, p.backlog, set)
	}
	return []side{
		ours(sideInsertTx10, txSettings),
		tuned(sideInsertRiver10, 10),
		bare(sideInsertRaw10, raw.Settings{Workers: 10, Batch: 1}),
		ours(sideInsertTx50, relaySettings{Kind: kindTx, Workers: 50}),
		tuned(sideInsertRiver50, 50),
		ours(sideInsertBatch, batchSettings),
		bare(sideInsertRawMany, rawBatch),
		ours(sideComplete, relaySettings{Kind: kindLeased, Workers: 30}),
		ours(sideGroup32, relaySettings{Kind: kindTx, Workers: 6, Group: 32, Within: groupWithin}),
		ours(sideGroup8, relaySettings{Kind: kindTx, Workers: 8, Group: 8, Within: groupWithin}),
		bare(sideRawGroup32, raw.Settings{Workers: 10, Batch: 32, Group: true}),
	}
}

func defaultsSides(p plan) []side {
	n := p.backlog
	ours := func(name, kind string, workers int) side {
		return oursSide(name, n, relaySettings{Kind: kind, Workers: workers, Batch: 100, Listen: true})
	}
	return []side{
		ours(sideDefaultTx, kindTx, 10), riverSide(sideDefaultRiver, n, river.Settings{Workers: 10}),
		ours(sideDefaultBatch, kindBatch, 10), ours(sideDefaultLeased, kindLeased, 10),
		ours(sideDefaultTx100, kindTx, 100), riverSide(sideDefaultRiver100, n, river.Settings{Workers: 100}),
		ours(sideDefaultBatch100, kindBatch, 100), ours(sideDefaultLeased100, kindLeased, 100),
	}
}

// The metrics of a burn-down.
const (
	mRate        = "tasks/s"
	mFirstSecond = "first second, tasks/s"
	mSlowest     = "slowest window of 5 s, tasks/s"
	mCPU         = "client CPU, µs/task"
)

const windowLength = 5 * time.Second

// burn makes a turn of a burn-down. It ends when nothing is left, or after its limit: then the
// tasks that are done count.
func burn(limit func(plan) time.Duration) func(context.Context, *bench, turn) error {
	return func(ctx context.Context, b *bench, t turn) error {
		d, err := b.server.fresh(ctx, t.side)
		if err != nil {
			return err
		}
		defer d.drop()
		d.SetMaxIdleConns(1)
		runtime.GC()
		w, err := workOff(ctx, t.side, d, limit(b.plan))
		if err == nil && w.done == 0 {
			err = fmt.Errorf("no task was done within %s", w.elapsed.Round(time.Millisecond))
		}
		if err != nil {
			return err
		}
		cpu, rate := perTask(w.cpu, w.done), float64(w.done)/w.elapsed.Seconds()
		b.add(t, mRate, rate)
		b.add(t, mFirstSecond, w.progress.Windows(min(time.Second, w.elapsed), 0, w.elapsed)[0])
		b.add(t, mSlowest, slices.Min(w.progress.Windows(windowLength, 0, w.elapsed)))
		b.add(t, mCPU, cpu)
		b.say("  %-34s round %d: %9.0f tasks/s (%d of %d in %.2f s, %.1f µs CPU a task)",
			t.name, t.round+1, rate, w.done, t.tasks, w.elapsed.Seconds(), cpu)
		return nil
	}
}

// worked is what a side did in a turn.
type worked struct {
	progress *measure.Progress
	done     int
	elapsed  time.Duration // since the first one was handled
	cpu      time.Duration
}

// longest is how long a turn waits for its first task, whatever its limit.
const longest = 20 * time.Second

// workOff starts a side, and stops it at the end of its turn. The limit is exceeded until a task is
// done.
func workOff(ctx context.Context, s side, d *database, limit time.Duration) (w worked, err error) {
	w.progress = measure.NewProgress(s.tasks)
	before := cpuTime()
	stop, err := s.start(ctx, d.url, w.progress.Done)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := first(ctx, w.progress); err != nil {
		return w, err
	}
	select {
	case <-w.progress.Reached():
	case <-time.After(limit):
	case <-ctx.Done():
	}
	// A task whose handler has returned may not be done: the database tells.
	for {
		w.elapsed = w.progress.Elapsed()
		left, err := s.left(ctx, d.DB)
		if err != nil {
			return w, fmt.Errorf("count what is left: %w", err)
		}
		w.done = s.tasks - left
		if left == 0 || w.elapsed >= limit && (w.done > 0 || w.elapsed >= longest) {
			w.cpu = cpuTime() - before
			return w, nil
		}
		pause(ctx, 2*time.Millisecond)
	}
}

// first waits for the first task that is handled.
func first(ctx context.Context, p *measure.Progress) error {
	select {
	case <-p.First():
		return nil
	case <-time.After(longest):
		return fmt.Errorf("no task was handled within %s", longest)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // fails for no argument of this form
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// perTask is the CPU time of each of n tasks in µs.
func perTask(cpu time.Duration, n int) float64 { return float64(cpu.Microseconds()) / float64(n) }
