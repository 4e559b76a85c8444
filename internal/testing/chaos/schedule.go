//go:build unix

package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// due is a fault of the schedule.
type due struct {
	at    time.Duration
	fault *fault
	seed  uint64 // of its choices
}

// schedule is the same for the same seed, faults, length and distance.
func schedule(o options) (all []due) {
	r := rand.New(rand.NewPCG(o.seed, 0))
	total := 0
	for _, name := range o.faults {
		total += faultNamed(name).weight
	}
	if total == 0 {
		return nil
	}
	for at := time.Second; at < o.length; at += o.every/2 + time.Duration(r.Int64N(int64(o.every))) {
		n := r.IntN(total)
		for _, name := range o.faults {
			f := faultNamed(name)
			if n -= f.weight; n < 0 {
				all = append(all, due{at, f, r.Uint64()})
				break
			}
		}
	}
	return all
}

// inject injects the faults of the schedule, one after the other. A slow one delays the next.
func inject(ctx context.Context, a *arena, o options) {
	began := time.Now()
	for _, d := range schedule(o) {
		wait(ctx, max(time.Until(began.Add(d.at)), o.every/5))
		if ctx.Err() != nil || time.Since(began) > o.length {
			return
		}
		what, err := d.fault.do(a, rand.New(rand.NewPCG(d.seed, 0)))
		a.happened(d.fault.name, what, err)
	}
	wait(ctx, time.Until(began.Add(o.length)))
}
