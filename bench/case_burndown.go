package main

import (
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

// The good settings of each kind for work that takes no time.
const (
	batchSize     = 1000
	batchWorkers  = 4
	leasedWorkers = 1000
	leasedGroup   = 256 // of the raw lease pair
	leasedClaims  = 4   // goroutines of the raw lease pair
	txWorkers     = 10
)

const (
	caseBurndown   = "burndown"
	sideBatch      = "outbox Batch, 4 × 1,000"
	sideLeased     = "outbox Leased, 1,000 workers"
	sideTx         = "outbox Tx, 10 workers"
	sideRawBatch   = "raw claims, 4 × 1,000"
	sideRawLeased  = "raw lease pairs, 4 × 256"
	sideRiverBench = "River, its benchmark's settings"
	sideWatermill  = "watermill-sql queue"
)

var (
	batchSettings  = relaySettings{Kind: kindBatch, Workers: batchWorkers, Batch: batchSize}
	leasedSettings = relaySettings{Kind: kindLeased, Workers: leasedWorkers}
	txSettings     = relaySettings{Kind: kindTx, Workers: txWorkers}
)

var burndownCase = benchCase{
	name: caseBurndown, title: "burn-down of 200,000 tasks that do nothing",
	sides: burndownSides, turn: burn(func(p plan) time.Duration { return p.burn }),
}

func burndownSides(p plan) []side {
	n := p.backlog
	return []side{
		oursSide(sideBatch, n, batchSettings),
		riverSide(sideRiverBench, n, river.Bench()),
		rawSide(sideRawBatch, n, raw.Settings{Workers: batchWorkers, Batch: batchSize}),
		watermillSide(sideWatermill, n),
		oursSide(sideLeased, n, leasedSettings),
		rawSide(sideRawLeased, n, raw.Settings{Workers: leasedClaims, Batch: leasedGroup, Leased: true}),
		oursSide(sideTx, n, txSettings),
	}
}

const (
	caseLarge      = "burndown-large"
	sideBatchLarge = "outbox Batch, 4 × 1,000, of 1,000,000"
	sideRawLarge   = "raw claims, 4 × 1,000, of 1,000,000"
)

var largeCase = benchCase{
	name: caseLarge, title: "burn-down of 1,000,000 tasks that do nothing, in windows of 5 s",
	rounds: 2, sides: largeSides, turn: burn(func(p plan) time.Duration { return p.long }),
}

func largeSides(p plan) []side {
	return []side{
		oursSide(sideBatchLarge, p.large, batchSettings),
		rawSide(sideRawLarge, p.large, raw.Settings{Workers: batchWorkers, Batch: batchSize}),
	}
}
