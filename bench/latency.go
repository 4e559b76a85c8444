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
	mP50              = "p50, ms"
	mP99              = "p99, ms"
	sideRiverDefaults = "River, defaults"
	sideAcross        = "outbox Tx, across processes"
	sideAcrossLeased  = "outbox Leased, across processes"
	sidePolling       = "outbox, polling only (1 s)"
	sideRawWake       = "raw LISTEN and claim, across processes"
	pollInterval      = time.Second
)

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
		set childSettings
	}{
		{oursSide(sideAcross, 0, relaySettings{}), childSettings{Relays: 1, Set: defaultRelay}},
		{oursSide(sideAcrossLeased, 0, relaySettings{}), childSettings{Relays: 1,
			Set: relaySettings{Kind: kindLeased, Listen: true}}},
		{rawSide(sideRawWake, 0, raw.Settings{}), childSettings{Raw: true}},
		{riverSide(sideRiverDefaults, 0, river.Settings{}), childSettings{River: &river.Settings{Workers: 10}}},
		{riverSide(sideRiverBench, 0, river.Settings{}), childSettings{River: &riverBench}},
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
		c.set.URLs = []string{d.url}
		if p.process, err = startProcess(ctx, c.set); err != nil {
			return err
		}
		defer p.process.Stop()
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
	p, err := startProcess(ctx, childSettings{URLs: urls, Relays: 1,
		Set: relaySettings{Kind: kindTx, Poll: pollInterval}})
	if err != nil {
		return err
	}
	defer p.Stop()
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

const (
	mStatements = "statements/s a relay"
	mIdleCPU    = "CPU, % of a core, a relay"
	sideIdle1   = "1 sleeping relay"
	sideIdle20  = "20 sleeping relays in a process"
)

const (
	extensionSQL = `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`
	putOffSQL    = `UPDATE outbox.maintenance
   SET due_at = GREATEST(due_at, clock_timestamp() + interval '1 minute')`
	oidSQL   = `SELECT oid FROM pg_database WHERE datname = current_database()`
	resetSQL = `SELECT pg_stat_statements_reset()`
	callsSQL = `/* bench: calls */
SELECT COALESCE(sum(calls), 0) FROM pg_stat_statements WHERE dbid = $1`
)

func idleSides(plan) []side {
	return []side{oursSide(sideIdle1, 0, relaySettings{}), oursSide(sideIdle20, 0, relaySettings{})}
}

func idleTurn(ctx context.Context, b *bench, t turn) error {
	return b.server.with(ctx, t.side, func(d *database, _ client) error {
		admin, relays := b.server.admin, map[string]int{sideIdle1: 1, sideIdle20: 20}[t.name]
		if _, err := admin.ExecContext(ctx, extensionSQL); err != nil {
			return fmt.Errorf("this case needs pg_stat_statements: %w", err)
		}
		p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Relays: relays, Set: defaultRelay})
		if err != nil {
			return err
		}
		defer p.Stop()
		pause(ctx, b.plan.settle)
		var oid int64
		if err := errors.Join(d.exec(ctx, putOffSQL), d.QueryRowContext(ctx, oidSQL).Scan(&oid)); err != nil {
			return err
		}
		if _, err := admin.ExecContext(ctx, resetSQL); err != nil {
			return err
		}
		before, err1 := p.cpu(ctx)
		began := time.Now()
		pause(ctx, b.plan.idle)
		after, err2 := p.cpu(ctx)
		seconds := time.Since(began).Seconds() * float64(relays)
		var calls float64
		err3 := admin.QueryRowContext(ctx, callsSQL, oid).Scan(&calls)
		b.add(t, mStatements, calls/seconds)
		b.add(t, mIdleCPU, 100*(after-before).Seconds()/seconds)
		return errors.Join(err1, err2, err3)
	})
}
