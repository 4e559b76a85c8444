package main

import "time"

// The kinds of bound.
const (
	atLeast = ">="
	atMost  = "<="
)

type sides = []string

// target is one line of what the benchmark holds. With Than the bound is on the ratio of ours to
// it, round by round; without, on the value itself. Where several sides are named, the best one by
// the metric counts, on either side.
type target struct {
	Case   string
	What   string
	Metric string
	Sides  sides
	Than   sides
	Of     string // the metric of Than, if it is another one
	In     string // the case of Than, if it is another one
	Op     string
	Bound  float64
	// Raw are sides of the raw limit. Where the same ratio with the best of them in place of ours
	// misses the bound too, no library could reach it here, and the target does not count as
	// missed.
	Raw sides
}

// targets are all that -check holds.
func targets(p plan) []target {
	var all []target
	for _, set := range [][]target{
		throughputTargets(), handlerTargets(), enqueueTargets(), quietTargets(), walTargets(), flatTargets(p),
	} {
		all = append(all, set...)
	}
	return all
}

func throughputTargets() []target {
	river, watermill := sides{sideRiverBench}, sides{sideWatermill}
	return []target{
		{Case: caseBurndown, What: "Batch, no-op, 200,000: against River at its benchmark's settings",
			Metric: mRate, Sides: sides{sideBatch}, Than: river, Op: atLeast, Bound: 7, Raw: sides{sideRawBatch}},
		{Case: caseBurndown, What: "Batch, no-op, 200,000: against watermill-sql's queue",
			Metric: mRate, Sides: sides{sideBatch}, Than: watermill, Op: atLeast, Bound: 1.2, Raw: sides{sideRawBatch}},
		{Case: caseBurndown, What: "Batch, no-op, 200,000: slowest window against the raw limit's first second",
			Metric: mSlowest, Sides: sides{sideBatch}, Than: sides{sideRawBatch}, Of: mFirstSecond, Op: atLeast, Bound: 0.8},
		{Case: caseLarge, What: "Batch, no-op, 1,000,000: against River at its benchmark's settings",
			Metric: mRate, Sides: sides{sideBatchLarge}, Than: river, In: caseBurndown,
			Op: atLeast, Bound: 7, Raw: sides{sideRawLarge}},
		{Case: caseLarge, What: "Batch, no-op, 1,000,000: against watermill-sql's queue",
			Metric: mRate, Sides: sides{sideBatchLarge}, Than: watermill, In: caseBurndown,
			Op: atLeast, Bound: 1.2, Raw: sides{sideRawLarge}},
		{Case: caseLarge, What: "Batch, no-op, 1,000,000: slowest window against the raw limit's first second",
			Metric: mSlowest, Sides: sides{sideBatchLarge}, Than: sides{sideRawLarge}, Of: mFirstSecond, Op: atLeast, Bound: 0.8},
		{Case: caseBurndown, What: "Leased, no-op, 200,000: against River at its benchmark's settings",
			Metric: mRate, Sides: sides{sideLeased}, Than: river, Op: atLeast, Bound: 3, Raw: sides{sideRawLeased}},
	}
}

func handlerTargets() []target {
	tx, raw := sides{sideInsertTx10, sideInsertTx50}, sides{sideInsertRaw10, sideInsertRaw50}
	river := sides{sideInsertRiver10, sideInsertRiver50}
	all := []target{
		{Case: caseInsert, What: "Tx with one insert: against River's JobCompleteTx, each at its best worker count",
			Metric: mRate, Sides: tx, Than: river, Op: atLeast, Bound: 2, Raw: raw},
		{Case: caseInsert, What: "Tx with one insert: against the raw limit",
			Metric: mRate, Sides: tx, Than: raw, Op: atLeast, Bound: 0.7},
		{Case: caseInsert, What: "Batch handler with one insert a task: against River's JobCompleteTx",
			Metric: mRate, Sides: sides{sideInsertBatch}, Than: river, Op: atLeast, Bound: 6, Raw: sides{sideInsertRawMany}},
	}
	for _, side := range []string{sideDefaultTx, sideDefaultBatch, sideDefaultLeased} {
		all = append(all, target{Case: caseDefaults, What: "defaults, no-op: " + side + " against River's defaults",
			Metric: mRate, Sides: sides{side}, Than: sides{sideDefaultRiver}, Op: atLeast, Bound: 20})
	}
	return all
}

func enqueueTargets() []target {
	return []target{
		{Case: caseEnqueue, What: "Enqueue, 8 connections, relay busy: against a bare INSERT",
			Metric: mSpeed, Sides: sides{sideEnqueue}, Than: sides{sideBare}, Op: atLeast, Bound: 0.85},
		{Case: caseEnqueue, What: "Enqueue beside a held snapshot: against a bare INSERT beside it",
			Metric: mSpeed, Sides: sides{sideHeld}, Than: sides{sideBareHeld}, Op: atLeast, Bound: 0.85},
		{Case: caseEnqueue, What: "Enqueue: against River's InsertTx",
			Metric: mSpeed, Sides: sides{sideEnqueue}, Than: sides{sideRiverTx}, Op: atLeast, Bound: 1.5, Raw: sides{sidePrepared}},
		{Case: caseMany, What: "EnqueueMany, 5,000 a call: against River's InsertManyFast",
			Metric: mRate, Sides: sides{sideMany}, Than: sides{sideRiverFast}, Op: atLeast, Bound: 2, Raw: sides{sideUnnest}},
		{Case: caseMany, What: "EnqueueMany, 5,000 a call: against a bare INSERT … SELECT FROM unnest",
			Metric: mRate, Sides: sides{sideMany}, Than: sides{sideUnnest}, Op: atLeast, Bound: 0.7},
	}
}

func quietTargets() []target {
	raw := sides{sideRawWake}
	return []target{
		{Case: caseLatency, What: "pickup on an idle queue, defaults, across processes: p50 in ms",
			Metric: mP50, Sides: sides{sideAcross}, Op: atMost, Bound: 2, Raw: raw},
		{Case: caseLatency, What: "pickup on an idle queue, defaults, across processes: p99 in ms",
			Metric: mP99, Sides: sides{sideAcross}, Op: atMost, Bound: 8, Raw: raw},
		{Case: caseLatency, What: "pickup by polling only: p99 in ms",
			Metric: mP99, Sides: sides{sidePolling}, Op: atMost, Bound: float64(pollInterval/time.Millisecond) + 20},
		{Case: caseIdle, What: "idle relay: statements/s",
			Metric: mStatements, Sides: sides{sideIdle1}, Op: atMost, Bound: 2},
		{Case: caseIdle, What: "20 idle relays: statements/s of each",
			Metric: mStatements, Sides: sides{sideIdle20}, Op: atMost, Bound: 2},
		{Case: caseIdle, What: "idle relay: CPU in % of a core",
			Metric: mIdleCPU, Sides: sides{sideIdle1}, Op: atMost, Bound: 0.5},
	}
}

func walTargets() []target {
	var all []target
	for _, k := range []struct {
		side  string
		bound float64
	}{{sideWALBatch, 0.25}, {sideWALTx, 0.35}, {sideWALLeased, 0.5}} {
		raw := sides{rawPrefix + k.side}
		all = append(all,
			target{Case: caseWAL, What: "WAL per task, " + k.side + ": against River",
				Metric: mWAL, Sides: sides{k.side}, Than: sides{sideWALRiver}, Op: atMost, Bound: k.bound, Raw: raw},
			target{Case: caseWAL, What: "WAL per task, " + k.side + ": against the raw statements",
				Metric: mWAL, Sides: sides{k.side}, Than: raw, Op: atMost, Bound: 1.3})
	}
	return all
}

// flatTargets are those of what must not grow.
func flatTargets(p plan) []target {
	var all []target
	for _, random := range []bool{false, true} {
		all = append(all, target{Case: caseClaim, What: "claim at " + claimSide(p.huge, random) + ": p50 against 10,000",
			Metric: mClaimP50,
			Sides:  sides{claimSide(p.huge, random)}, Than: sides{claimSide(smallQueue, random)}, Op: atMost, Bound: 1.5})
	}
	last, first := sides{sideLast}, sides{sideFirst}
	all = append(all,
		target{Case: caseHeld, What: "held transaction, 5,000/s: rate of the last window against the first",
			Metric: mRate, Sides: last, Than: first, Op: atLeast, Bound: 0.95},
		target{Case: caseHeld, What: "held transaction, 5,000/s: claim p99 of the last window against the first",
			Metric: mClaimP99, Sides: last, Than: first, Op: atMost, Bound: 3},
		target{Case: caseHeld, What: "held transaction, 5,000/s: claim p50 of the last window in ms",
			Metric: mClaimP50, Sides: last, Op: atMost, Bound: 5})
	for _, side := range []string{sideBatch, sideLeased, sideTx} {
		all = append(all, target{Case: caseRandom, What: "random order against the default order: " + side,
			Metric: mRate, Sides: sides{side + randomly}, Than: sides{side}, Op: atLeast, Bound: 0.7})
	}
	all = append(all, target{Case: caseTypes, What: "500 types, 1 of them busy: against one type",
		Metric: mRate, Sides: sides{typesSide(500)}, Than: sides{typesSide(1)}, Op: atLeast, Bound: 0.8})
	for _, side := range memorySides {
		all = append(all, target{Case: caseMemory, What: "resident memory at most, in MB, with the large backlog waiting: " + side.name,
			Metric: mPeak, Sides: sides{side.name}, Op: atMost, Bound: 64})
	}
	return all
}
