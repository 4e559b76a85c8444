package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// The metrics of a burn-down.
const (
	mRate        = "tasks/s"
	mFirstSecond = "first second, tasks/s"
	mSlowest     = "slowest window of 5 s, tasks/s"
	mCPU         = "client CPU, µs/task"
	mAllocs      = "allocations/task"
	mAllocBytes  = "allocated bytes/task"
	mDead        = "dead tuples left"
	mSize        = "size afterwards, MB"
)

const windowLength = 5 * time.Second

// burnDown lets each side take its turn in each round. A turn ends when nothing is left, or after
// limit: then what is done counts.
func (b *bench) burnDown(ctx context.Context, caseName string, limit time.Duration, sides ...side) error {
	for round := range b.plan.rounds {
		for _, s := range sides {
			if err := b.burn(ctx, caseName, round, limit, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) burn(ctx context.Context, caseName string, round int, limit time.Duration, s side) error {
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	d.SetMaxIdleConns(1)
	runtime.GC()
	t, err := workOff(ctx, s, d, limit)
	if err == nil && t.done == 0 {
		err = fmt.Errorf("no task was done within %s", t.elapsed.Round(time.Millisecond))
	}
	if err != nil {
		return err
	}
	cpu, mallocs, bytes := perTask(t.before, t.after, t.done)
	rate := float64(t.done) / t.elapsed.Seconds()
	for metric, value := range map[string]float64{
		mRate: rate, mFirstSecond: t.progress.Windows(min(time.Second, t.elapsed), 0, t.elapsed)[0],
		mSlowest: slices.Min(t.progress.Windows(windowLength, 0, t.elapsed)),
		mCPU:     cpu, mAllocs: mallocs, mAllocBytes: bytes,
	} {
		b.samples.Add(caseName, s.name, metric, round, value)
	}
	b.say("  %-34s round %d: %9.0f tasks/s (%d of %d in %.2f s, %.1f µs CPU, %.0f allocations a task)",
		s.name, round+1, rate, t.done, s.tasks, t.elapsed.Seconds(), cpu, mallocs)
	return b.leftovers(ctx, caseName, s.name, round, d)
}

// turn is what a side did in one turn.
type turn struct {
	progress      *measure.Progress
	done          int
	elapsed       time.Duration
	before, after usage
}

// workOff starts a side and stops it at the end of its turn.
func workOff(ctx context.Context, s side, d *database, limit time.Duration) (t turn, err error) {
	t.progress = measure.NewProgress(s.tasks)
	t.before = usageNow()
	stop, err := s.start(ctx, d.url, t.progress.Done)
	if err != nil {
		return t, err
	}
	t.done, t.elapsed, err = follow(ctx, t.progress, s, d, limit)
	t.after = usageNow()
	return t, errors.Join(err, stop())
}

// longest is how long a turn waits for its first task, whatever its limit.
const longest = 20 * time.Second

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

// follow waits for the end of a turn: how many were done, and in what time since the first one was
// handled. The limit is exceeded until a task is done.
func follow(ctx context.Context, p *measure.Progress, s side, d *database, limit time.Duration) (
	done int, elapsed time.Duration, err error) {
	if err := first(ctx, p); err != nil {
		return 0, 0, err
	}
	select {
	case <-p.Reached():
	case <-time.After(limit):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	// A task whose handler has returned may not be done: the database tells.
	for {
		elapsed = p.Elapsed()
		left, err := s.left(ctx, d.DB)
		if err != nil {
			return 0, 0, fmt.Errorf("count what is left: %w", err)
		}
		if done = s.tasks - left; left == 0 || elapsed >= limit && (done > 0 || elapsed >= longest) {
			return done, elapsed, nil
		}
		pause(ctx, 2*time.Millisecond)
	}
}

const leftoversSQL = `/* bench: leftovers */
SELECT COALESCE(sum(n_dead_tup), 0), pg_database_size(current_database()) / 1e6 FROM pg_stat_user_tables`

// leftovers are what a turn leaves in the tables, after autovacuum did what it got to.
func (b *bench) leftovers(ctx context.Context, caseName, side string, round int, d *database) error {
	var dead, size float64
	err := d.QueryRowContext(ctx, leftoversSQL).Scan(&dead, &size)
	b.samples.Add(caseName, side, mDead, round, dead)
	b.samples.Add(caseName, side, mSize, round, size)
	return err
}
