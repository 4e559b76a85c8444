//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"
)

// runs makes as many runs as asked, and returns their sum.
func runs(ctx context.Context, o options) (*report, error) {
	if o.Slices == 1 {
		return run(ctx, o)
	}
	sum := &report{Options: o.String(), Seed: o.Seed, Faults: map[string]int{}, Counts: map[string]int{}, Violations: map[string][]string{}}
	for i := range o.Slices {
		one := o
		one.Slices, one.Seed = 1, o.Seed+uint64(i)
		r, err := run(ctx, one)
		if err != nil {
			return sum, fmt.Errorf("seed %d: %w", one.Seed, err)
		}
		fmt.Fprintln(os.Stderr, r)
		sum.add(r)
	}
	return sum, nil
}

// run is one run from its beginning to its verdict.
func run(ctx context.Context, o options) (*report, error) {
	began := time.Now()
	a, err := newArena(ctx, o)
	if err != nil {
		return nil, err
	}
	remove := false
	defer func() {
		a.close()
		if remove {
			_ = os.RemoveAll(a.dir)
		}
	}()
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
	if err := a.checkIdle(); err != nil {
		return nil, err
	}
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
	if remove = r.passed() && !o.Keep && ctx.Err() == nil; !remove {
		r.Files = a.dir
	}
	return r, ctx.Err()
}

// workOff waits until no task is left, and nothing of a run in the journal; it gives up when for a while nothing becomes less.
func (a *arena) workOff(ctx context.Context) {
	patience := a.Patience
	if a.has("clock") {
		patience *= 2 // leases and backoffs may lie in the server's future
	}
	least, progress := -1, time.Now()
	for ctx.Err() == nil && time.Since(progress) < patience {
		left, err := a.number(`SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.running)`)
		switch {
		case err != nil:
		case left == 0:
			return
		case least < 0 || left < least:
			least, progress = left, time.Now()
		}
		if a.Verbose {
			a.say(`SELECT coalesce(string_agg(what || ' ' || n, ', '), 'nothing') FROM (SELECT task_type || ' ' || state AS what, count(*) AS n FROM outbox.task GROUP BY 1
				UNION ALL SELECT 'runs', count(*) FROM outbox.running) AS l`)
		}
		wait(ctx, 200*time.Millisecond)
	}
}

// say prints what is left.
func (a *arena) say(query string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var text string
	err := a.admin(ctx, func(db *sql.DB) error { return db.QueryRowContext(ctx, query).Scan(&text) })
	fmt.Fprintln(os.Stderr, "left:", text, err)
}
