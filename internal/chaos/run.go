//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// run is one run from its beginning to its verdict.
func run(ctx context.Context, o options) (*report, error) {
	began := time.Now()
	a, err := newArena(ctx, o)
	if err != nil {
		return nil, err
	}
	defer a.close()
	a.torment(ctx)
	tormented := time.Now()
	a.heal()
	for _, s := range a.producers {
		if err := s.stop(time.Minute); err != nil {
			a.violate("producers that did not end", fmt.Sprint(s.config.Name, ": ", err))
		}
	}
	if a.has("clock") {
		if err := a.setClock(0); err != nil {
			return nil, err
		}
	}
	a.workOff(ctx)
	worked := time.Since(tormented)
	for _, s := range a.relays {
		if err := s.stop(drainWithin); err != nil {
			a.violate("relays that did not end in order", fmt.Sprint(s.config.Name, ": ", err))
		}
	}
	if err := a.check(); err != nil {
		return nil, err
	}
	r := a.report()
	r.Took, r.WorkedOff = time.Since(began).Round(time.Millisecond), worked.Round(time.Millisecond)
	if r.passed() && !o.Keep && ctx.Err() == nil {
		return r, os.RemoveAll(a.dir)
	}
	r.Files = a.dir
	return r, ctx.Err()
}

// workOff waits until no task is left, and nothing of a run in the journal.
func (a *arena) workOff(ctx context.Context) {
	within := a.Patience
	if a.has("clock") {
		within *= 2 // leases and backoffs may lie in the server's future
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		left, err := a.number(`SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.running)`)
		if err == nil && left == 0 {
			return
		}
		wait(ctx, 200*time.Millisecond)
	}
}
