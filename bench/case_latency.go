package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseLatency       = "latency"
	mP50              = "p50, ms"
	mP95              = "p95, ms"
	mP99              = "p99, ms"
	mMost             = "most, ms"
	mCount            = "samples"
	mToClaim          = "commit to claim, p50 ms"
	mClaiming         = "claim, p50 ms"
	mToHandler        = "claimed to handler, p50 ms"
	sideRiverDefaults = "River, defaults"
	sideAcross        = "outbox Tx, across processes"
	sideAcrossLeased  = "outbox Leased, across processes"
	sidePolling       = "outbox, polling only (1 s)"
	sideRawWake       = "raw LISTEN and claim, across processes"
	pollInterval      = time.Second
)

var latencyCase = benchCase{
	name: caseLatency, budget: 34, title: "from commit to handler start, on an idle queue", run: latency,
	says: `One task at a time, at random moments, on a queue where nothing else happens: the time from the
return of COMMIT in the enqueuing process to the first line of the handler in another process, by
the one clock of the machine; a handler that starts before COMMIT has returned counts as 0. All of
ours with default settings and ListenDSN, but for polling only, which has none. Each sample waits
for the one before. Raw is an INSERT with pg_notify, and one prepared claim for each notification.
The legs of ours are until the relay begins its claim, until the task is claimed (Leased: and the
lease is committed), and until the handler runs (Tx: once its run is in the journal). It does not
say what a busy queue's tasks wait: that is the backlog before them.`,
	metrics: []string{mP50, mP95, mP99, mMost, mCount, mToClaim, mClaiming, mToHandler},
}

// defaultRelay is a relay at its defaults, with ListenDSN.
var defaultRelay = relaySettings{Kind: kindTx, Listen: true}

// pickup enqueues in a database, and a process handles the tasks.
type pickup struct {
	name    string
	client  client
	process *process
}

// times are milliseconds from a commit to the start of its task's handler, and its legs.
type times struct{ all, toClaim, claim, toHandler float64 }

// sample enqueues task n and returns how long its handler took to start.
func (p pickup) sample(ctx context.Context, n int) (t times, err error) {
	if err := p.client.one(ctx, n); err != nil {
		return t, err
	}
	committed := time.Now().UnixNano()
	at, err := p.process.started(ctx, n)
	if err != nil {
		return t, fmt.Errorf("%s, task %d: %w", p.name, n, err)
	}
	ms := func(from, to int64) float64 { return max(0, float64(to-from)/1e6) }
	t.all = ms(committed, at.At)
	if at.Claim > 0 {
		t.toClaim, t.claim, t.toHandler = ms(committed, at.Claim), ms(at.Claim, at.Claimed), ms(at.Claimed, at.At)
	}
	return t, nil
}

func latency(ctx context.Context, b *bench) error {
	riverBench := river.Bench()
	var all []pickup
	for _, c := range []struct {
		side
		set ChildSettings
	}{
		{oursSide(sideAcross, 0, relaySettings{}), ChildSettings{Relays: 1, Set: defaultRelay}},
		{oursSide(sideAcrossLeased, 0, relaySettings{}), ChildSettings{Relays: 1,
			Set: relaySettings{Kind: kindLeased, Listen: true}}},
		{rawSide(sideRawWake, 0, raw.Settings{}), ChildSettings{Raw: true}},
		{riverSide(sideRiverDefaults, 0, river.Settings{}), ChildSettings{River: &river.Settings{Workers: 10}}},
		{riverSide(sideRiverBench, 0, river.Settings{}), ChildSettings{River: &riverBench}},
	} {
		d, err := b.server.fresh(ctx, c.side)
		if err != nil {
			return err
		}
		defer d.drop()
		p := pickup{name: c.name}
		if p.client, err = c.open(ctx, d); err != nil {
			return err
		}
		defer p.client.close()
		c.set.URLs = []string{d.url}
		if p.process, err = startProcess(ctx, c.set); err != nil {
			return err
		}
		defer p.process.stop()
		all = append(all, p)
	}
	const warm = 5
	taken := map[string][]times{}
	for n := range b.plan.pickups + warm {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, p := range all {
			if p.name == sideRiverDefaults && n%4 != 1 {
				continue // it takes longer than all others
			}
			t, err := p.sample(ctx, n)
			if err != nil {
				return err
			}
			if n >= warm {
				taken[p.name] = append(taken[p.name], t)
			}
		}
		pause(ctx, 50*time.Millisecond+rand.N(b.plan.gap))
	}
	for _, p := range all {
		b.addLatency(p.name, taken[p.name])
	}
	return b.polling(ctx)
}

func (b *bench) addLatency(side string, taken []times) {
	add := func(metric string, q float64, of func(times) float64) {
		ms := make([]float64, len(taken))
		for i, t := range taken {
			ms[i] = of(t)
		}
		if v := measure.Quantile(ms, q); v > 0 {
			b.samples.Add(caseLatency, side, metric, 0, v)
		}
	}
	for metric, q := range map[string]float64{mP50: 0.5, mP95: 0.95, mP99: 0.99, mMost: 1} {
		add(metric, q, func(t times) float64 { return t.all })
	}
	add(mToClaim, 0.5, func(t times) float64 { return t.toClaim })
	add(mClaiming, 0.5, func(t times) float64 { return t.claim })
	add(mToHandler, 0.5, func(t times) float64 { return t.toHandler })
	b.samples.Add(caseLatency, side, mCount, 0, float64(len(taken)))
}

// polling measures relays without ListenDSN, several side by side, as each sample takes seconds: a
// relay polls at its full interval only when nothing has happened for some time.
func (b *bench) polling(ctx context.Context) error {
	var clients []client
	var urls []string
	for range b.plan.pollers {
		d, err := b.server.fresh(ctx, oursSide(sidePolling, 0, relaySettings{}))
		if err != nil {
			return err
		}
		defer d.drop()
		c, _ := oursClient(ctx, d)
		clients, urls = append(clients, c), append(urls, d.url)
	}
	p, err := startProcess(ctx, ChildSettings{URLs: urls, Relays: 1, Set: relaySettings{Kind: kindTx, Poll: pollInterval}})
	if err != nil {
		return err
	}
	defer p.stop()
	taken, errs := make([][]times, len(clients)), make([]error, len(clients))
	var group sync.WaitGroup
	for i, c := range clients {
		group.Go(func() {
			for n := 0; n < b.plan.polls && errs[i] == nil; n++ {
				pause(ctx, b.plan.settle/2+rand.N(time.Second))
				var t times
				t, errs[i] = pickup{sidePolling, c, p}.sample(ctx, n*len(clients)+i)
				taken[i] = append(taken[i], t)
			}
		})
	}
	group.Wait()
	b.addLatency(sidePolling, slices.Concat(taken...))
	return errors.Join(errs...)
}
