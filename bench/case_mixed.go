package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/schema"
)

const (
	caseMixed      = "mixed"
	mixedTypes     = 20
	mixedProcesses = 8
	mixedWorkers   = 4
	sideMixed      = "outbox, 8 processes of 4 workers"
	sideMixedRiver = "River, 8 clients of 4 workers, tuned"
	mLeast         = "of the type with the least, tasks/s"
	mFarthest      = "of the type with the most, tasks/s"
)

func mixedCase() benchCase {
	return benchCase{
		name: caseMixed, budget: 8, title: "20 task types, 8 relay processes", run: mixed,
		says: `A backlog of 20 types is worked off by 8 processes: a third of the types has Tx handlers that insert a row, a third Batch handlers of 100 that insert a row for each task, a third Leased handlers that do nothing.
Types of unlike speed get unlike shares: a claim of a Batch handler takes up to 100 tasks. River has one type of job, in 8 clients in one process, as its worker with JobCompleteTx: it is there for the sum of transactions only.`,
		metrics: []string{mRate, mLeast, mFarthest},
	}
}

func mixedNames() []string {
	var names []string
	for i := range mixedTypes {
		names = append(names, fmt.Sprintf("MIXED_%02d", i))
	}
	return names
}

func mixed(ctx context.Context, b *bench) error {
	for round := range b.plan.infoRounds {
		if err := b.mixedTurn(ctx, round); err != nil {
			return err
		}
		if b.plan.extras && b.has(peerRiver) {
			s := riverSide(sideMixedRiver, b.plan.backlog, "", tuned(mixedProcesses*mixedWorkers))
			if err := b.burn(ctx, caseMixed, round, b.plan.mixed, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) mixedTurn(ctx context.Context, round int) error {
	each := b.plan.mixedTasks / mixedTypes
	d, err := b.server.fresh(ctx, "mixed", func(ctx context.Context, d *database) error {
		if err := schema.Migrate(ctx, d.DB); err != nil {
			return err
		}
		for _, name := range mixedNames() {
			if _, err := d.ExecContext(ctx, fillOursSQL, name, smallPayload, each); err != nil {
				return err
			}
		}
		return d.exec(ctx, effectTableSQL)
	})
	if err != nil {
		return err
	}
	defer d.drop()
	for range mixedProcesses {
		p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Relays: 1,
			Set: relaySettings{Kind: kindMixed, Workers: mixedWorkers, Batch: 100, Insert: true, Types: mixedNames(), Listen: true}})
		if err != nil {
			return err
		}
		defer p.stop()
	}
	before, err := outbox.Stats(ctx, d)
	if err != nil {
		return err
	}
	began := time.Now()
	pause(ctx, b.plan.mixed)
	elapsed := time.Since(began)
	after, err := outbox.Stats(ctx, d)
	if err != nil {
		return err
	}
	var sum, least, most float64
	for i, s := range after {
		rate := float64(s.Finished-before[i].Finished) / elapsed.Seconds()
		sum += rate
		if i == 0 || rate < least {
			least = rate
		}
		most = max(most, rate)
	}
	b.samples.Add(caseMixed, sideMixed, mRate, round, sum)
	b.samples.Add(caseMixed, sideMixed, mLeast, round, least)
	b.samples.Add(caseMixed, sideMixed, mFarthest, round, most)
	return nil
}

const casePayload = "payload"

func payloadCase() benchCase {
	return benchCase{
		name: casePayload, budget: 12, title: "payloads of 200 B, 2 kB and 64 kB", run: payloads,
		says: `The burn-down with larger payloads, of text that does not compress: Batch handlers with claims of 1,000, for 64 kB of 100. The bare claims read the payload as text
and do not decode it; ours and River decode it into a Go struct.`,
		metrics: []string{mRate, mMBs, mCPU, mAllocBytes},
	}
}

const mMBs = "MB/s"

func payloads(ctx context.Context, b *bench) error {
	for _, size := range []struct {
		name         string
		bytes, batch int
		tasks        int // of a quick run
	}{{"200 B", 200, batchSize, 40_000}, {"2 kB", 2000, batchSize, 16_000}, {"64 kB", 64_000, 100, 1_000}} {
		n := size.tasks * b.plan.payload / 100
		pad := noise(size.bytes - len(`{"n": 100000, "pad": ""}`))
		payload := `{"n": 100000, "pad": "` + pad + `"}`
		sides := []side{
			oursSide("outbox Batch, "+size.name, n, payload, relaySettings{Kind: kindBatch, Workers: batchWorkers, Batch: size.batch}),
			rawSide("raw claims, "+size.name, n, payload, raw.Settings{Workers: batchWorkers, Batch: size.batch}),
		}
		if b.plan.extras {
			sides = append(sides, riverSide("River, its benchmark's settings, "+size.name, n, pad, river.Bench()))
		}
		if err := b.burnDown(ctx, casePayload, b.plan.infoRounds, b.plan.burn, sides...); err != nil {
			return err
		}
		for _, s := range b.present(sides) {
			for round, rate := range b.samples.Rounds(casePayload, s.name, mRate) {
				b.samples.Add(casePayload, s.name, mMBs, round, rate*float64(size.bytes)/1e6)
			}
			b.server.forget(s.key)
		}
	}
	return nil
}

// noise is a text of n letters that does not compress, the same one each time.
func noise(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
	r := rand.New(rand.NewPCG(1, 2))
	var s strings.Builder
	for range n {
		s.WriteByte(letters[r.IntN(len(letters))])
	}
	return s.String()
}
