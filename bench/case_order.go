package main

import (
	"context"
	"fmt"
)

const (
	caseRandom = "random"
	caseTypes  = "types"
	randomly   = ", random order"
)

func randomCase() benchCase {
	return benchCase{
		name: caseRandom, budget: 32, title: "random order against the default order", run: randomOrder,
		says: `The burn-down of 200,000 tasks that do nothing, in both orders of claiming. Random claims start at
a random task of the most urgent priority.`,
		metrics: []string{mRate, mCPU, mDead},
	}
}

func randomOrder(ctx context.Context, b *bench) error {
	var sides []side
	for _, k := range []struct {
		name string
		set  relaySettings
	}{{sideBatch, batchSettings}, {sideLeased, leasedSettings}, {sideTx, txSettings}} {
		random := k.set
		random.Random = true
		sides = append(sides, oursSide(k.name, b.plan.backlog, k.set), oursSide(k.name+randomly, b.plan.backlog, random))
	}
	return b.burnDown(ctx, caseRandom, b.plan.short, sides...)
}

// typeCounts are how many types a relay has handlers for; all tasks are of one of them.
var typeCounts = []int{1, 20, 500}

func typesSide(n int) string {
	if n == 1 {
		return "1 type"
	}
	return fmt.Sprintf("%d types, 1 of them busy", n)
}

func typesCase() benchCase {
	return benchCase{
		name: caseTypes, budget: 16, title: "1, 20 and 500 task types, one of them with tasks", run: types,
		says: `The burn-down of 200,000 tasks that do nothing by a relay that has handlers for more types: what
looking for other types' work costs. Batch handlers, 4 × 1,000.`,
		metrics: []string{mRate, mCPU},
	}
}

func types(ctx context.Context, b *bench) error {
	var sides []side
	for _, n := range typeCounts {
		set := batchSettings
		set.Types = []string{taskType}
		for i := 1; i < n; i++ {
			set.Types = append(set.Types, fmt.Sprintf("QUIET_%03d", i))
		}
		sides = append(sides, oursSide(typesSide(n), b.plan.backlog, set))
	}
	return b.burnDown(ctx, caseTypes, b.plan.short, sides...)
}
