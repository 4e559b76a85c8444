package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
)

// The kinds of bound.
const (
	atLeast = ">="
	atMost  = "<="
)

// target is one line of what the benchmark holds. With Than the bound is on the ratio of ours to
// it, round by round; without, on the value itself. Where several sides are named, the best one by
// the metric counts, on either side.
type target struct {
	Case   string
	What   string
	Metric string
	Sides  []string
	Than   []string
	Of     string // the metric of Than, if it is another one
	In     string // the case of Than, if it is another one
	Op     string
	Bound  float64
	// Raw are sides of the raw limit. Where the same ratio with the best of them in place of ours
	// misses the bound too, no library could reach it here, and the target does not count as
	// missed.
	Raw []string
}

// of makes targets for a metric of a case.
func of(caseName, metric string) func(what string, ours ...string) target {
	return func(what string, ours ...string) target {
		return target{Case: caseName, Metric: metric, What: what, Sides: ours}
	}
}

func (t target) than(sides ...string) target { t.Than = sides; return t }

func (t target) atLeast(bound float64, raw ...string) target {
	t.Op, t.Bound, t.Raw = atLeast, bound, raw
	return t
}

func (t target) atMost(bound float64, raw ...string) target {
	t.Op, t.Bound, t.Raw = atMost, bound, raw
	return t
}

// targets are all that -check holds.
func targets() (all []target) {
	for _, k := range []struct{ caseName, size, ours, raw string }{
		{caseBurndown, "200,000", sideBatch, sideRawBatch},
		{caseLarge, "1,000,000", sideBatchLarge, sideRawLarge},
	} {
		what, rate := "Batch, no-op, "+k.size+": ", of(k.caseName, mRate)
		river := rate(what+"against River at its benchmark's settings", k.ours).than(sideRiverBench)
		watermill := rate(what+"against watermill-sql's queue", k.ours).than(sideWatermill)
		river.In, watermill.In = caseBurndown, caseBurndown
		slowest := of(k.caseName, mSlowest)(what+"slowest window against the raw limit's first second", k.ours)
		slowest.Of = mFirstSecond
		all = append(all, river.atLeast(7, k.raw), watermill.atLeast(1.2, k.raw),
			slowest.than(k.raw).atLeast(0.8))
	}
	all = append(all,
		of(caseBurndown, mRate)("Leased, no-op, 200,000: against River at its benchmark's settings", sideLeased).
			than(sideRiverBench).atLeast(3, sideRawLeased))

	const jobComplete = " with one insert: against River's JobCompleteTx at its best worker count"
	insert := of(caseInsert, mRate)
	ours, river := []string{sideInsertTx10, sideInsertTx50}, []string{sideInsertRiver10, sideInsertRiver50}
	all = append(all,
		insert("Tx with one insert: against River's JobCompleteTx, each at its best worker count", ours...).
			than(river...).atLeast(1.5, sideInsertRaw10),
		insert("Tx with one insert: against the raw limit", ours...).than(sideInsertRaw10).atLeast(0.65),
		// not 6: a statement of each task's own deletes it
		insert("GroupCommit(32)"+jobComplete, sideGroup32).than(river...).atLeast(4.5, sideRawGroup32),
		insert("GroupCommit(32) with one insert: against raw single transactions", sideGroup32).
			than(sideInsertRaw10).atLeast(3, sideRawGroup32),
		insert("GroupCommit(32) with one insert: against raw groups of 32 with savepoints", sideGroup32).
			than(sideRawGroup32).atLeast(0.65),
		insert("GroupCommit(8)"+jobComplete, sideGroup8).than(river...).atLeast(4.5, sideRawGroup32),
		insert("Complete"+jobComplete, sideComplete).than(river...).atLeast(1.5, sideInsertRaw10),
		insert("Batch handler with one insert a task: against River's JobCompleteTx", sideInsertBatch).
			than(river...).atLeast(6, sideInsertRawMany))
	for _, ours := range []string{sideDefaultTx, sideDefaultBatch, sideDefaultLeased} {
		what := "defaults, no-op: " + ours + " against River's defaults"
		all = append(all, of(caseDefaults, mRate)(what, ours).than(sideDefaultRiver).atLeast(20))
	}

	enqueue, many := of(caseEnqueue, mSpeed), of(caseMany, mRate)
	all = append(all,
		enqueue("Enqueue, 8 connections, relay busy: against a bare INSERT", sideEnqueue).
			than(sideBare).atLeast(0.85),
		enqueue("Enqueue beside a held snapshot: against a bare INSERT beside it", sideHeld).
			than(sideBareHeld).atLeast(0.85),
		enqueue("Enqueue on pgx: against a prepared INSERT", sideEnqueuePgx).
			than(sidePreparePgx).atLeast(0.8),
		enqueue("Enqueue on pgx: against River's InsertTx", sideEnqueuePgx).
			than(sideRiverTx).atLeast(1.3, sidePreparePgx),
		enqueue("Enqueue: against River's InsertTx", sideEnqueue).
			than(sideRiverTx).atLeast(1.5, sidePrepared),
		many("EnqueueMany, 5,000 a call: against River's InsertManyFast", sideMany).
			than(sideRiverFast).atLeast(2, sideUnnest),
		many("EnqueueMany, 5,000 a call: against a bare INSERT … SELECT FROM unnest", sideMany).
			than(sideUnnest).atLeast(0.7))

	const pickup = "pickup on an idle queue, "
	p50, p99 := of(caseLatency, mP50), of(caseLatency, mP99)
	all = append(all,
		p50(pickup+"defaults, across processes: p50 in ms", sideAcross).atMost(2, sideRawWake),
		p99(pickup+"defaults, across processes: p99 in ms", sideAcross).atMost(8, sideRawWake))
	for _, k := range [][2]string{{"Tx", sideAcross}, {"Leased", sideAcrossLeased}} {
		all = append(all,
			p50(pickup+k[0]+": p50 against LISTEN and claim by hand", k[1]).than(sideRawWake).atMost(1.6),
			p99(pickup+k[0]+": p99 against LISTEN and claim by hand", k[1]).than(sideRawWake).atMost(2))
	}
	all = append(all,
		p99("pickup by polling only: p99 in ms", sidePolling).atMost(float64(pollInterval/time.Millisecond)+20),
		of(caseIdle, mStatements)("idle relay: statements/s", sideIdle1).atMost(2),
		of(caseIdle, mStatements)("20 idle relays: statements/s of each", sideIdle20).atMost(2),
		of(caseIdle, mIdleCPU)("idle relay: CPU in % of a core", sideIdle1).atMost(0.5))

	// The raw table has no index by due time, which costs an enqueue 84 bytes and keeps tasks from
	// waiting for ever.
	for _, k := range []struct {
		side  string
		bound float64 // against River; 0: none
	}{{sideWALBatch, 0.25}, {sideWALTx, 0.35}, {sideWALLeased, 0.5}, {sideWALGroup, 0}} {
		what, wal := "WAL per task, "+k.side+": against ", of(caseWAL, mWAL)
		if k.bound > 0 {
			all = append(all, wal(what+"River", k.side).than(sideWALRiver).atMost(k.bound, rawPrefix+k.side))
		}
		all = append(all, wal(what+"the raw statements", k.side).than(rawPrefix+k.side).atMost(1.4))
	}

	const window, events = "held transaction, 5,000/s: ", "events to "
	const beside = "tasks of 1,000 keys beside one that hangs: "
	forwarded := of(caseForward, mRate)
	return append(all,
		of(caseDead, mDeadEach)("dead rows/task beside an open transaction, Leased: against River",
			sideDeadOurs).than(sideRiverBench).atMost(1),
		of(caseKeys, mP99)(beside+"p99 in ms", sideKeys).atMost(50),
		of(caseKeys, mClaimP50)(beside+"claim p50 against claims without keys", sideKeys).than(sideNoKeys).atMost(1.2),
		of(caseHeld, mRate)(window+"rate of the last window against the first", sideLast).
			than(sideFirst).atLeast(0.95),
		of(caseHeld, mClaimP99)(window+"claim p99 of the last window against the first", sideLast).
			than(sideFirst).atMost(3),
		of(caseHeld, mClaimP50)(window+"claim p50 of the last window in ms", sideLast).atMost(5),
		forwarded(events+"JetStream: against watermill's Forwarder", sideForwardNATS).
			than(sideForwarderNATS).atLeast(3),
		forwarded(events+"Kafka: against watermill's Forwarder", sideForwardKafka).
			than(sideForwarderKafka).atLeast(3),
		forwarded(events+"JetStream: events/s", sideForwardNATS).atLeast(20_000),
		forwarded(events+"JetStream: against the bare client", sideForwardNATS).
			than(sideBareNATS).atLeast(0.5))
}

// The outcomes of a target.
const (
	outcomePass    = "pass"
	outcomeFail    = "FAIL"
	outcomeExcused = "below, as is the raw limit"
	outcomeUnknown = "not measured"
)

// verdict is what became of a target.
type verdict struct {
	target
	Got     measure.Summary
	RawGot  float64 // the raw limit's own
	Outcome string
}

// unit of Got: x for a ratio.
func (v verdict) unit() string {
	if len(v.Than) > 0 {
		return "x"
	}
	return ""
}

// judge holds the samples against the targets.
func judge(s *measure.Samples, targets []target) []verdict {
	var out []verdict
	for _, t := range targets {
		out = append(out, t.judge(s))
	}
	return out
}

// requireAll makes a target that was not measured a missed one, where everything was to be.
func requireAll(verdicts []verdict) {
	for i, v := range verdicts {
		if v.Outcome == outcomeUnknown {
			verdicts[i].Outcome = outcomeFail
		}
	}
}

func (t target) judge(s *measure.Samples) verdict {
	v := verdict{target: t, Outcome: outcomeUnknown}
	if v.Got = t.got(s, t.Sides); v.Got.N == 0 {
		return v
	}
	switch v.Outcome = outcomePass; {
	case t.holds(v.Got.Median):
		return v
	case len(t.Raw) > 0:
		if limit := t.got(s, t.Raw); limit.N > 0 && !t.holds(limit.Median) {
			v.RawGot, v.Outcome = limit.Median, outcomeExcused
			return v
		}
	}
	v.Outcome = outcomeFail
	return v
}

func (t target) holds(value float64) bool {
	if t.Op == atMost {
		return value <= t.Bound
	}
	return value >= t.Bound
}

// got is what the best of the sides reaches.
func (t target) got(s *measure.Samples, sides []string) measure.Summary {
	side := t.best(s, t.Case, t.Metric, sides)
	if len(t.Than) == 0 {
		return s.Of(t.Case, side, t.Metric)
	}
	in, of := cmp.Or(t.In, t.Case), cmp.Or(t.Of, t.Metric)
	return measure.Ratio(s.Rounds(t.Case, side, t.Metric), s.Rounds(in, t.best(s, in, of, t.Than), of))
}

// best is the side with the best median: the highest where more is better.
func (t target) best(s *measure.Samples, caseName, metric string, sides []string) (best string) {
	var value float64
	for _, side := range sides {
		m := s.Of(caseName, side, metric)
		if m.N == 0 {
			continue
		}
		if best == "" || (m.Median > value) == (t.Op == atLeast) {
			best, value = side, m.Median
		}
	}
	return best
}

// sentence says a verdict in one line.
func (v verdict) sentence() string {
	unit := v.unit()
	bound := fmt.Sprintf("%s %s%s", v.Op, trimmed(v.Bound), unit)
	switch {
	case v.Got.N == 0:
		return bound + ": not measured in this run"
	case v.Outcome == outcomeExcused:
		return fmt.Sprintf("%s, %s: the raw limit itself reaches %s%s", cellWith(v.Got, unit), bound, number(v.RawGot), unit)
	}
	return fmt.Sprintf("%s, %s", cellWith(v.Got, unit), bound)
}

// trimmed writes a bound as it was given.
func trimmed(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func printVerdicts(w io.Writer, verdicts []verdict) {
	short := map[string]string{outcomePass: "pass", outcomeFail: "FAIL", outcomeExcused: "raw"}
	fmt.Fprintln(w, "targets:")
	for _, v := range verdicts {
		if v.Outcome != outcomeUnknown {
			fmt.Fprintf(w, "  %-5s %s: %s\n", short[v.Outcome], v.What, v.sentence())
		}
	}
}
