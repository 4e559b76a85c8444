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
		cpu := perTask(w.before, w.after, w.done)
		rate := float64(w.done) / w.elapsed.Seconds()
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
	progress      *measure.Progress
	done          int
	elapsed       time.Duration
	before, after Usage
}

// workOff starts a side and stops it at the end of its turn.
func workOff(ctx context.Context, s side, d *database, limit time.Duration) (w worked, err error) {
	w.progress = measure.NewProgress(s.tasks)
	w.before = usageNow()
	stop, err := s.start(ctx, d.url, w.progress.Done)
	if err != nil {
		return w, err
	}
	w.done, w.elapsed, err = follow(ctx, w.progress, s, d, limit)
	w.after = usageNow()
	return w, errors.Join(err, stop())
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
