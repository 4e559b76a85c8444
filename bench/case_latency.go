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
	mP99              = "p99, ms"
	sideRiverDefaults = "River, defaults"
	sideAcross        = "outbox Tx, across processes"
	sideAcrossLeased  = "outbox Leased, across processes"
	sidePolling       = "outbox, polling only (1 s)"
	sideRawWake       = "raw LISTEN and claim, across processes"
	pollInterval      = time.Second
)

var latencyCase = benchCase{
	name: caseLatency, title: "from commit to handler start, on an idle queue", run: latency,
}

// defaultRelay is a relay at its defaults, with ListenDSN.
var defaultRelay = relaySettings{Kind: kindTx, Listen: true}

// pickup enqueues in a database, and a process handles the tasks.
type pickup struct {
	name    string
	client  client
	process *process
}

// sample enqueues task n and returns in how many milliseconds after the commit its handler started.
func (p pickup) sample(ctx context.Context, n int) (ms float64, err error) {
	if err := p.client.one(ctx, n); err != nil {
		return 0, err
	}
	committed := time.Now().UnixNano()
	at, err := p.process.started(ctx, n)
	if err != nil {
		return 0, fmt.Errorf("%s, task %d: %w", p.name, n, err)
	}
	return max(0, float64(at-committed)/1e6), nil
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
	taken := map[string][]float64{}
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

func (b *bench) addLatency(side string, ms []float64) {
	b.samples.Add(caseLatency, side, mP50, 0, measure.Quantile(ms, 0.5))
	b.samples.Add(caseLatency, side, mP99, 0, measure.Quantile(ms, 0.99))
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
	taken, errs := make([][]float64, len(clients)), make([]error, len(clients))
	var group sync.WaitGroup
	for i, c := range clients {
		group.Go(func() {
			for n := 0; n < b.plan.polls && errs[i] == nil; n++ {
				pause(ctx, b.plan.settle/2+rand.N(time.Second))
				var t float64
				t, errs[i] = pickup{sidePolling, c, p}.sample(ctx, n*len(clients)+i)
				taken[i] = append(taken[i], t)
			}
		})
	}
	group.Wait()
	b.addLatency(sidePolling, slices.Concat(taken...))
	return errors.Join(errs...)
}
