//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// runs makes as many runs as asked, and prints their reports.
func runs(ctx context.Context, o options) (passed bool, err error) {
	passed = true
	for i := range o.slices {
		one := o
		one.seed += uint64(i)
		r, err := run(ctx, one)
		if err != nil {
			return false, err
		}
		fmt.Print(r)
		passed = passed && r.passed()
	}
	return passed, nil
}

// run is one run from its beginning to its verdict. The files of a run that does not pass stay.
func run(ctx context.Context, o options) (r *report, err error) {
	dir, err := os.MkdirTemp("", "outbox-chaos-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server may be another user
		return nil, err
	}
	a, err := newArena(ctx, o, dir)
	defer func() {
		a.close()
		switch {
		case ctx.Err() != nil || r != nil && r.passed():
			_ = os.RemoveAll(dir)
		case err != nil:
			err = fmt.Errorf("%w; files: %s", err, dir)
		}
	}()
	if err != nil {
		return nil, err
	}
	r = &report{tally: a.tally, options: o.String(), files: dir}
	inject(ctx, a, o)
	a.heal()
	healed := time.Now()
	for _, s := range a.producers {
		if err := s.stop(time.Minute); err != nil {
			a.violate("producers that did not end", fmt.Sprint(s.name, ": ", err))
		}
	}
	if o.has("clock") {
		if err := setClock(a, 0); err != nil {
			return nil, err
		}
	}
	workOff(ctx, a, o)
	r.workedOff = time.Since(healed)
	if err := examples(a, idleChecks); err != nil {
		return nil, err
	}
	for _, s := range a.relays {
		if err := s.stop(drainWithin); err != nil {
			a.violate("relays that did not end in order", fmt.Sprint(s.name, ": ", err))
		}
		a.count("starts of relays", s.starts)
	}
	if err := check(a, o); err != nil {
		return nil, err
	}
	r.took = time.Since(a.began)
	return r, ctx.Err()
}

// workOff waits until no task is left, and no run in the journal. It gives up when their number
// does not fall for a while.
func workOff(ctx context.Context, a *arena, o options) {
	patience := o.patience
	if o.has("clock") {
		patience *= 2 // leases and backoffs may lie in the server's future
	}
	least, progress := -1, time.Now()
	for ctx.Err() == nil && time.Since(progress) < patience {
		var left int
		err := a.row(&left, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.running)`)
		switch {
		case err != nil:
		case left == 0:
			return
		case least < 0 || left < least:
			least, progress = left, time.Now()
		}
		wait(ctx, 200*time.Millisecond)
	}
}
