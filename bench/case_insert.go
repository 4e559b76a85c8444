package main

import (
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

const caseInsert = "insert"

const (
	sideInsertTx10    = "outbox Tx, 10 workers"
	sideInsertTx50    = "outbox Tx, 50 workers"
	sideInsertRaw10   = "raw transactions, 10 connections"
	sideInsertRiver10 = "River, 10 workers, tuned"
	sideInsertRiver50 = "River, 50 workers, tuned"
	sideInsertBatch   = "outbox Batch, 4 × 1,000"
	sideInsertRawMany = "raw transactions, 4 × 1,000"

	sideComplete   = "outbox Complete, 30 workers"
	sideGroup32    = "outbox Tx, GroupCommit(32)"
	sideGroup8     = "outbox Tx, GroupCommit(8)"
	sideRawGroup32 = "raw transactions, 10 × 32, each deleted in its turn"
)

// groupWithin lets groups of 32 be full on a busy machine.
const groupWithin = 100 * time.Millisecond

var insertCase = benchCase{
	name: caseInsert, title: "a handler that inserts one row, in the transaction that removes its task",
	sides: insertingSides, turn: burn(func(p plan) time.Duration { return p.insert }),
}

// tuned are River's fetch settings of its benchmark, for workers that use connections.
func tuned(workers int) river.Settings {
	s := river.Bench()
	s.Workers, s.MaxConns, s.Insert = workers, workers+10, true
	return s
}

func insertingSides(p plan) []side {
	n := p.backlog
	tx := func(name string, workers int) side {
		return oursSide(name, n, relaySettings{Kind: kindTx, Workers: workers, Insert: true})
	}
	group := func(name string, size, workers int) side {
		return oursSide(name, n,
			relaySettings{Kind: kindTx, Workers: workers, Insert: true, Group: size, Within: groupWithin})
	}
	bare := func(name string, workers, batch int) side {
		return rawSide(name, n, raw.Settings{Workers: workers, Batch: batch, Insert: true})
	}
	return []side{
		tx(sideInsertTx10, 10), riverSide(sideInsertRiver10, n, tuned(10)), bare(sideInsertRaw10, 10, 1),
		tx(sideInsertTx50, 50), riverSide(sideInsertRiver50, n, tuned(50)),
		oursSide(sideInsertBatch, n, relaySettings{Kind: kindBatch, Workers: batchWorkers, Batch: batchSize, Insert: true}),
		bare(sideInsertRawMany, batchWorkers, batchSize),
		oursSide(sideComplete, n, relaySettings{Kind: kindLeased, Workers: 30, Insert: true}),
		group(sideGroup32, 32, 6), group(sideGroup8, 8, 8),
		rawSide(sideRawGroup32, n, raw.Settings{Workers: 10, Batch: 32, Insert: true, Group: true}),
	}
}

const caseDefaults = "defaults"

const (
	sideDefaultTx     = "outbox Tx, 10 workers"
	sideDefaultBatch  = "outbox Batch of 100, 10 workers"
	sideDefaultLeased = "outbox Leased, 10 workers"
	sideDefaultRiver  = "River, 10 workers"

	sideDefaultTx100     = "outbox Tx, 100 workers"
	sideDefaultBatch100  = "outbox Batch of 100, 100 workers"
	sideDefaultLeased100 = "outbox Leased, 100 workers"
	sideDefaultRiver100  = "River, 100 workers"
)

var defaultsCase = benchCase{
	name: caseDefaults, title: "default settings, with 10 and with 100 workers",
	sides: defaultsSides, turn: burn(func(p plan) time.Duration { return p.short }),
}

func defaultsSides(p plan) []side {
	n := p.backlog
	ours := func(name, kind string, workers int) side {
		return oursSide(name, n, relaySettings{Kind: kind, Workers: workers, Batch: 100, Listen: true})
	}
	return []side{
		ours(sideDefaultTx, kindTx, 10), riverSide(sideDefaultRiver, n, river.Settings{Workers: 10}),
		ours(sideDefaultBatch, kindBatch, 10), ours(sideDefaultLeased, kindLeased, 10),
		ours(sideDefaultTx100, kindTx, 100), riverSide(sideDefaultRiver100, n, river.Settings{Workers: 100}),
		ours(sideDefaultBatch100, kindBatch, 100), ours(sideDefaultLeased100, kindLeased, 100),
	}
}
