package main

import (
	"fmt"
	"time"
)

const (
	caseRandom = "random"
	caseTypes  = "types"
	randomly   = ", random order"
)

var randomCase = benchCase{
	name: caseRandom, title: "random order against the default order",
	sides: randomOrderSides, turn: burn(func(p plan) time.Duration { return p.short }),
}

func randomOrderSides(p plan) []side {
	var sides []side
	for _, k := range []struct {
		name string
		set  relaySettings
	}{{sideBatch, batchSettings}, {sideLeased, leasedSettings}, {sideTx, txSettings}} {
		random := k.set
		random.Random = true
		sides = append(sides, oursSide(k.name, p.backlog, k.set), oursSide(k.name+randomly, p.backlog, random))
	}
	return sides
}

// typeCounts are how many types a relay has handlers for; all tasks are of one of them.
var typeCounts = []int{1, 500}

func typesSide(n int) string {
	if n == 1 {
		return "1 type"
	}
	return fmt.Sprintf("%d types, 1 of them busy", n)
}

var typesCase = benchCase{
	name: caseTypes, title: "1 and 500 task types, one of them with tasks",
	sides: typesSides, turn: burn(func(p plan) time.Duration { return p.short }),
}

func typesSides(p plan) []side {
	var sides []side
	for _, n := range typeCounts {
		set := batchSettings
		set.Types = []string{taskType}
		for i := 1; i < n; i++ {
			set.Types = append(set.Types, fmt.Sprintf("QUIET_%03d", i))
		}
		sides = append(sides, oursSide(typesSide(n), p.backlog, set))
	}
	return sides
}
