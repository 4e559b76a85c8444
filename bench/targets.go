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

// ratio is a target for the best of ours against the best of others.
func ratio(caseName, what, metric string, ours, than sides, op string, bound float64) target {
	return target{Case: caseName, What: what, Metric: metric, Sides: ours, Than: than, Op: op, Bound: bound}
}

// value is a target for one side.
func value(caseName, what, metric, side, op string, bound float64) target {
	return target{Case: caseName, What: what, Metric: metric, Sides: sides{side}, Op: op, Bound: bound}
}

// of names another metric of the side that it is compared with.
func (t target) of(metric string) target { t.Of = metric; return t }

// in names another case of it.
func (t target) in(caseName string) target { t.In = caseName; return t }

// raw names the sides of the raw limit.
func (t target) raw(sides ...string) target { t.Raw = sides; return t }

// targets are all that -check holds.
func targets(p plan) []target {
	one := func(side string) sides { return sides{side} }
	river, watermill := one(sideRiverBench), one(sideWatermill)
	insertTx, insertRaw := sides{sideInsertTx10, sideInsertTx50}, sides{sideInsertRaw10}
	insertRiver := sides{sideInsertRiver10, sideInsertRiver50}
	const polled = float64(pollInterval / time.Millisecond)
	all := []target{
		ratio(caseBurndown, "Batch, no-op, 200,000: against River at its benchmark's settings", mRate, one(sideBatch), river,
			atLeast, 7).raw(sideRawBatch),
		ratio(caseBurndown, "Batch, no-op, 200,000: against watermill-sql's queue", mRate, one(sideBatch), watermill, atLeast,
			1.2).raw(sideRawBatch),
		ratio(caseBurndown, "Batch, no-op, 200,000: slowest window against the raw limit's first second", mSlowest,
			one(sideBatch), one(sideRawBatch), atLeast, 0.8).of(mFirstSecond),
		ratio(caseLarge, "Batch, no-op, 1,000,000: against River at its benchmark's settings", mRate, one(sideBatchLarge),
			river, atLeast, 7).in(caseBurndown).raw(sideRawLarge),
		ratio(caseLarge, "Batch, no-op, 1,000,000: against watermill-sql's queue", mRate, one(sideBatchLarge), watermill,
			atLeast, 1.2).in(caseBurndown).raw(sideRawLarge),
		ratio(caseLarge, "Batch, no-op, 1,000,000: slowest window against the raw limit's first second", mSlowest,
			one(sideBatchLarge), one(sideRawLarge), atLeast, 0.8).of(mFirstSecond),
		ratio(caseBurndown, "Leased, no-op, 200,000: against River at its benchmark's settings", mRate, one(sideLeased),
			river, atLeast, 3).raw(sideRawLeased),

		ratio(caseInsert, "Tx with one insert: against River's JobCompleteTx, each at its best worker count", mRate, insertTx,
			insertRiver, atLeast, 1.5).raw(insertRaw...),
		ratio(caseInsert, "Tx with one insert: against the raw limit", mRate, insertTx, insertRaw, atLeast, 0.65),
		// not 6: a statement of each task's own deletes it
		ratio(caseInsert, "GroupCommit(32) with one insert: against River's JobCompleteTx at its best worker count", mRate,
			one(sideGroup32), insertRiver, atLeast, 4.5).raw(sideRawGroup32),
		ratio(caseInsert, "GroupCommit(32) with one insert: against raw single transactions", mRate, one(sideGroup32),
			insertRaw, atLeast, 3).raw(sideRawGroup32),
		ratio(caseInsert, "GroupCommit(32) with one insert: against raw groups of 32 with savepoints", mRate,
			one(sideGroup32), one(sideRawGroup32), atLeast, 0.65),
		ratio(caseInsert, "GroupCommit(8) with one insert: against River's JobCompleteTx at its best worker count", mRate,
			one(sideGroup8), insertRiver, atLeast, 4.5).raw(sideRawGroup32),
		ratio(caseInsert, "Complete with one insert: against River's JobCompleteTx at its best worker count", mRate,
			one(sideComplete), insertRiver, atLeast, 1.5).raw(insertRaw...),
		ratio(caseInsert, "Batch handler with one insert a task: against River's JobCompleteTx", mRate, one(sideInsertBatch),
			insertRiver, atLeast, 6).raw(sideInsertRawMany),
		ratio(caseDefaults, "defaults, no-op: "+sideDefaultTx+" against River's defaults", mRate, one(sideDefaultTx),
			one(sideDefaultRiver), atLeast, 20),
		ratio(caseDefaults, "defaults, no-op: "+sideDefaultBatch+" against River's defaults", mRate, one(sideDefaultBatch),
			one(sideDefaultRiver), atLeast, 20),
		ratio(caseDefaults, "defaults, no-op: "+sideDefaultLeased+" against River's defaults", mRate, one(sideDefaultLeased),
			one(sideDefaultRiver), atLeast, 20),

		ratio(caseEnqueue, "Enqueue, 8 connections, relay busy: against a bare INSERT", mSpeed, one(sideEnqueue),
			one(sideBare), atLeast, 0.85),
		ratio(caseEnqueue, "Enqueue beside a held snapshot: against a bare INSERT beside it", mSpeed, one(sideHeld),
			one(sideBareHeld), atLeast, 0.85),
		ratio(caseEnqueue, "Enqueue on pgx: against a prepared INSERT", mSpeed, one(sideEnqueuePgx), one(sidePreparePgx),
			atLeast, 0.8),
		ratio(caseEnqueue, "Enqueue on pgx: against River's InsertTx", mSpeed, one(sideEnqueuePgx), one(sideRiverTx), atLeast,
			1.3).raw(sidePreparePgx),
		ratio(caseEnqueue, "Enqueue: against River's InsertTx", mSpeed, one(sideEnqueue), one(sideRiverTx), atLeast,
			1.5).raw(sidePrepared),
		ratio(caseMany, "EnqueueMany, 5,000 a call: against River's InsertManyFast", mRate, one(sideMany), one(sideRiverFast),
			atLeast, 2).raw(sideUnnest),
		ratio(caseMany, "EnqueueMany, 5,000 a call: against a bare INSERT … SELECT FROM unnest", mRate, one(sideMany),
			one(sideUnnest), atLeast, 0.7),

		value(caseLatency, "pickup on an idle queue, defaults, across processes: p50 in ms", mP50, sideAcross, atMost,
			2).raw(sideRawWake),
		value(caseLatency, "pickup on an idle queue, defaults, across processes: p99 in ms", mP99, sideAcross, atMost,
			8).raw(sideRawWake),
		ratio(caseLatency, "pickup on an idle queue, Tx: p50 against LISTEN and claim by hand", mP50, one(sideAcross),
			one(sideRawWake), atMost, 1.6),
		ratio(caseLatency, "pickup on an idle queue, Tx: p99 against LISTEN and claim by hand", mP99, one(sideAcross),
			one(sideRawWake), atMost, 2),
		ratio(caseLatency, "pickup on an idle queue, Leased: p50 against LISTEN and claim by hand", mP50,
			one(sideAcrossLeased), one(sideRawWake), atMost, 1.6),
		ratio(caseLatency, "pickup on an idle queue, Leased: p99 against LISTEN and claim by hand", mP99,
			one(sideAcrossLeased), one(sideRawWake), atMost, 2),
		value(caseLatency, "pickup by polling only: p99 in ms", mP99, sidePolling, atMost, polled+20),
		value(caseIdle, "idle relay: statements/s", mStatements, sideIdle1, atMost, 2),
		value(caseIdle, "20 idle relays: statements/s of each", mStatements, sideIdle20, atMost, 2),
		value(caseIdle, "idle relay: CPU in % of a core", mIdleCPU, sideIdle1, atMost, 0.5),
	}
	// The raw table has no index by due time, which costs an enqueue 84 bytes and keeps tasks from
	// waiting for ever.
	for _, k := range []struct {
		side  string
		bound float64
	}{{sideWALBatch, 0.25}, {sideWALTx, 0.35}, {sideWALLeased, 0.5}} {
		all = append(all,
			ratio(caseWAL, "WAL per task, "+k.side+": against River", mWAL, one(k.side), one(sideWALRiver), atMost,
				k.bound).raw(rawPrefix+k.side),
			ratio(caseWAL, "WAL per task, "+k.side+": against the raw statements", mWAL, one(k.side), one(rawPrefix+k.side),
				atMost, 1.4))
	}
	all = append(all, ratio(caseWAL, "WAL per task, "+sideWALGroup+": against the raw statements", mWAL, one(sideWALGroup),
		one(rawPrefix+sideWALGroup), atMost, 1.4))

	all = append(all, ratio(caseDead, "dead rows/task beside an open transaction, Leased: against River", mDeadEach,
		one(sideDeadOurs), river, atMost, 1))

	for _, k := range []struct{ name, ours, watermill string }{
		{"JetStream", sideForwardNATS, sideForwarderNATS}, {"Kafka", sideForwardKafka, sideForwarderKafka},
	} {
		all = append(all, ratio(caseForward, "events to "+k.name+": against watermill's Forwarder", mRate, one(k.ours),
			one(k.watermill), atLeast, 3))
	}
	all = append(all,
		value(caseForward, "events to JetStream: events/s", mRate, sideForwardNATS, atLeast, 20_000),
		ratio(caseForward, "events to JetStream: against the bare client", mRate, one(sideForwardNATS),
			one(sideBareNATS), atLeast, 0.5))

	// Costs that must not grow.
	for _, random := range []bool{false, true} {
		large, small := claimSide(p.huge, random), claimSide(smallQueue, random)
		all = append(all, ratio(caseClaim, "claim at "+large+": p50 against 10,000", mClaimP50, one(large), one(small),
			atMost, 1.5))
	}
	all = append(all,
		ratio(caseHeld, "held transaction, 5,000/s: rate of the last window against the first", mRate, one(sideLast),
			one(sideFirst), atLeast, 0.95),
		ratio(caseHeld, "held transaction, 5,000/s: claim p99 of the last window against the first", mClaimP99, one(sideLast),
			one(sideFirst), atMost, 3),
		value(caseHeld, "held transaction, 5,000/s: claim p50 of the last window in ms", mClaimP50, sideLast, atMost, 5),
		ratio(caseTypes, "500 types, 1 of them busy: against one type", mRate, one(typesSide(500)), one(typesSide(1)),
			atLeast, 0.8))
	for _, side := range []string{sideBatch, sideLeased, sideTx} {
		all = append(all, ratio(caseRandom, "random order against the default order: "+side, mRate, one(side+randomly),
			one(side), atLeast, 0.7))
	}
	for _, side := range memorySides {
		all = append(all, value(caseMemory, "resident memory at most, in MB, with the large backlog waiting: "+side.name,
			mPeak, side.name, atMost, 64))
	}
	return all
}
