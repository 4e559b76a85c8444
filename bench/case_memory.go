package main

import (
	"context"
	"errors"
)

const (
	caseMemory = "memory"
	mPeak      = "resident at most, MB"
)

var memoryCase = benchCase{
	name: caseMemory, title: "memory of a relay's process with a large backlog waiting", run: memory,
}

// memorySides are the sides, with the settings of their relays.
var memorySides = []struct {
	name string
	set  relaySettings
}{{sideTx, txSettings}, {sideBatch, batchSettings}, {sideLeased, leasedSettings}}

func memory(ctx context.Context, b *bench) error {
	s := oursSide("", b.plan.huge, relaySettings{})
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	for _, side := range memorySides {
		set := side.set
		set.Listen = true
		p, err := startProcess(ctx, ChildSettings{URLs: []string{d.url}, Relays: 1, Set: set})
		if err != nil {
			return err
		}
		pause(ctx, b.plan.settle*2/3)
		used, err := p.used(ctx)
		if err := errors.Join(err, p.stop()); err != nil {
			return err
		}
		b.samples.Add(caseMemory, side.name, mPeak, 0, used.Peak)
	}
	return nil
}
