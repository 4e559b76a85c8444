package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
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
func (b *bench) burnDown(ctx context.Context, caseName string, rounds int, limit time.Duration, sides ...side) error {
	for round := range rounds {
		for _, s := range b.present(sides) {
			if err := b.burn(ctx, caseName, round, limit, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) burn(ctx context.Context, caseName string, round int, limit time.Duration, s side) error {
	d, err := b.server.fresh(ctx, s.key, s.build)
	if err != nil {
		return err
	}
	defer d.drop()
	d.SetMaxIdleConns(1)
	runtime.GC()
	p := measure.NewProgress(s.tasks)
	before := usage()
	stop, err := s.start(ctx, d.url, p.Done)
	if err != nil {
		p.End()
		return err
	}
	done, elapsed, err := b.follow(ctx, p, s, d, limit)
	after := usage()
	p.End()
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err == nil && done == 0 {
		err = fmt.Errorf("no task was done within %s", elapsed.Round(time.Millisecond))
	}
	if err != nil {
		return err
	}
	add := func(metric string, value float64) { b.samples.Add(caseName, s.name, metric, round, value) }
	add(mRate, float64(done)/elapsed.Seconds())
	add(mFirstSecond, p.Windows(min(time.Second, elapsed), elapsed)[0])
	slowest := 0.0
	for i, rate := range p.Windows(windowLength, elapsed) {
		if i == 0 || rate < slowest {
			slowest = rate
		}
		if elapsed > windowLength {
			add(windowMetric(i), rate)
		}
	}
	add(mSlowest, slowest)
	add(mCPU, float64((after.cpu-before.cpu).Microseconds())/float64(done))
	add(mAllocs, float64(after.mallocs-before.mallocs)/float64(done))
	add(mAllocBytes, float64(after.bytes-before.bytes)/float64(done))
	if err := b.leftovers(ctx, d, add); err != nil {
		return err
	}
	b.say("  %-34s round %d: %9.0f tasks/s (%d of %d in %.2f s, %.1f µs CPU, %.0f allocations a task)", s.name, round+1,
		float64(done)/elapsed.Seconds(), done, s.tasks, elapsed.Seconds(), float64((after.cpu-before.cpu).Microseconds())/float64(done), float64(after.mallocs-before.mallocs)/float64(done))
	return nil
}

// longest is how long a turn waits for its first task, whatever its limit.
const longest = 20 * time.Second

// follow waits for the end of a turn: how many were done, and in what time since the first one was handled.
// The limit is exceeded until a task is done.
func (b *bench) follow(ctx context.Context, p *measure.Progress, s side, d *database, limit time.Duration) (done int, elapsed time.Duration, err error) {
	select {
	case <-p.First():
	case <-time.After(longest):
		return 0, 0, fmt.Errorf("no task was handled within %s", longest)
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	select {
	case <-p.Reached():
	case <-time.After(limit):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	// A handler that has returned is not a task that is done: the database tells.
	for {
		elapsed = p.Elapsed()
		left, err := s.left(ctx, d.DB)
		if err != nil {
			return 0, 0, err
		}
		if done = s.tasks - left; left == 0 || elapsed >= limit && (done > 0 || elapsed >= longest) {
			return done, elapsed, nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}

func windowMetric(i int) string { return fmt.Sprintf("window %02d, tasks/s", i) }

const leftoversSQL = `/* bench: leftovers */
SELECT COALESCE(sum(n_dead_tup), 0), pg_database_size(current_database()) / 1e6 FROM pg_stat_user_tables`

// leftovers are what a turn leaves in the tables, after autovacuum did what it got to.
func (b *bench) leftovers(ctx context.Context, d *database, add func(string, float64)) error {
	conn, err := d.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var dead, size float64
	if err := conn.QueryRowContext(ctx, leftoversSQL).Scan(&dead, &size); err != nil {
		return err
	}
	add(mDead, dead)
	add(mSize, size)
	return nil
}

// used is what this process has used so far.
type used struct {
	cpu            time.Duration
	mallocs, bytes uint64
}

func usage() used {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{cpu: cpuTime(), mallocs: m.Mallocs, bytes: m.TotalAlloc}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
