package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
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
	sideInside        = "outbox, in process"
	sideRiverDefaults = "River, defaults"
	sideAcross        = "outbox, across processes"
	sidePolling       = "outbox, polling only (1 s)"
	sideRawWake       = "raw LISTEN and claim, across processes"
	pollInterval      = time.Second
)

func latencyCase() benchCase {
	return benchCase{
		name: caseLatency, budget: 34, title: "from commit to handler start, on an idle queue", run: latency,
		says: `One task at a time, at random moments, on a queue where nothing else happens: the time from the
return of COMMIT in the enqueuing process to the first line of the handler, by the one clock of
the machine; a handler that starts before COMMIT has returned counts as 0. All of ours with
default settings and ListenDSN, but for polling only, which has none. Each sample waits for the
one before. Raw is an INSERT with pg_notify, and one prepared claim for each notification. It does
not say what a busy queue's tasks wait: that is the backlog before them.`,
		metrics: []string{mP50, mP95, mP99, mMost, mCount},
	}
}

// pickup is one way to enqueue a task and hear of its handler's start.
type pickup struct {
	side    string
	enqueue func(ctx context.Context, n int) error
	starts  <-chan word
}

// sample enqueues task n and returns the milliseconds from the commit to its handler's start.
func (p pickup) sample(ctx context.Context, n int) (float64, error) {
	if err := p.enqueue(ctx, n); err != nil {
		return 0, err
	}
	committed := time.Now().UnixNano()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case w, ok := <-p.starts:
			if !ok {
				return 0, fmt.Errorf("%s: the process ended", p.side)
			}
			if w.N == n {
				return max(0, float64(w.At-committed)/1e6), nil
			}
		case <-timeout:
			return 0, fmt.Errorf("%s: task %d did not start within 10 s", p.side, n)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func latency(ctx context.Context, b *bench) error {
	var ways []pickup
	for _, open := range []func(context.Context, *server) (pickup, func(), error){
		pickupInside, pickupAcross, pickupRaw,
		pickupRiver(sideRiverDefaults, river.Settings{Workers: 10}), pickupRiver(sideRiverBench, river.Bench()),
	} {
		way, closeWay, err := open(ctx, b.server)
		if err != nil {
			return err
		}
		defer closeWay()
		ways = append(ways, way)
	}
	const warm = 5
	taken := map[string][]float64{}
	for n := range b.plan.pickups + warm {
		rand.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
		for _, way := range ways {
			if way.side == sideRiverDefaults && n%4 != 1 {
				continue // it takes longer than all others
			}
			ms, err := way.sample(ctx, n+1)
			if err != nil {
				return err
			}
			if n >= warm {
				taken[way.side] = append(taken[way.side], ms)
			}
		}
		pause(ctx, 50*time.Millisecond+rand.N(b.plan.gap))
	}
	for _, way := range ways {
		b.addLatency(way.side, taken[way.side])
	}
	return b.polling(ctx)
}

func (b *bench) addLatency(side string, ms []float64) {
	for metric, q := range map[string]float64{mP50: 0.5, mP95: 0.95, mP99: 0.99, mMost: 1} {
		b.samples.Add(caseLatency, side, metric, 0, measure.Quantile(ms, q))
	}
	b.samples.Add(caseLatency, side, mCount, 0, float64(len(ms)))
}

// defaultRelay is a relay at its defaults, with ListenDSN.
var defaultRelay = relaySettings{Kind: kindTx, Listen: true}

func pickupInside(ctx context.Context, s *server) (pickup, func(), error) {
	d, err := emptyOurs(ctx, s)
	if err != nil {
		return pickup{}, nil, err
	}
	starts := make(chan word, 100)
	stop, err := startRelay(ctx, d.url, defaultRelay, func(_ int, first load) {
		starts <- word{N: first.N, At: time.Now().UnixNano()}
	})
	if err != nil {
		d.drop()
		return pickup{}, nil, err
	}
	enqueue := func(ctx context.Context, n int) error {
		return outbox.InTx(ctx, d.DB, func(tx *sql.Tx) error {
			_, err := benchTask.Enqueue(ctx, tx, load{N: n})
			return err
		})
	}
	return pickup{sideInside, enqueue, starts}, func() { _ = stop(); d.drop() }, nil
}

// pickupBy is a pickup by a child process that works on a database.
func pickupBy(ctx context.Context, d *database, err error, side string, set childSettings,
	enqueue func(*database) func(context.Context, int) error) (pickup, func(), error) {
	if err != nil {
		return pickup{}, nil, err
	}
	set.URLs, set.Tell = []string{d.url}, true
	p, err := startProcess(ctx, set)
	if err != nil {
		d.drop()
		return pickup{}, nil, err
	}
	return pickup{side, enqueue(d), p.starts}, func() { _ = p.stop(); d.drop() }, nil
}

func pickupAcross(ctx context.Context, s *server) (pickup, func(), error) {
	d, err := emptyOurs(ctx, s)
	return pickupBy(ctx, d, err, sideAcross, childSettings{Relays: 1, Set: defaultRelay},
		func(d *database) func(context.Context, int) error { return enqueueOne(d.DB) })
}

func pickupRaw(ctx context.Context, s *server) (pickup, func(), error) {
	side := rawSide("", 0, raw.Settings{})
	d, err := s.fresh(ctx, side.key, side.build)
	return pickupBy(ctx, d, err, sideRawWake, childSettings{Raw: true}, func(d *database) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			payload, err := json.Marshal(load{N: n})
			if err != nil {
				return err
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error { return raw.Notify(ctx, tx, taskType, string(payload)) })
		}
	})
}

func pickupRiver(name string, set river.Settings) func(context.Context, *server) (pickup, func(), error) {
	return func(ctx context.Context, s *server) (pickup, func(), error) {
		d, err := emptyRiver(ctx, s)
		if err != nil {
			return pickup{}, nil, err
		}
		client, err := river.Open(ctx, d.url, 2)
		if err != nil {
			d.drop()
			return pickup{}, nil, err
		}
		way, closeWay, err := pickupBy(ctx, d, nil, name, childSettings{River: &set},
			func(*database) func(context.Context, int) error { return client.InsertOne })
		if err != nil {
			client.Close()
			return pickup{}, nil, err
		}
		return way, func() { client.Close(); closeWay() }, nil
	}
}

// polling measures relays without ListenDSN, several side by side, as each sample takes seconds: a
// relay polls at its full interval only when nothing has happened for some time.
func (b *bench) polling(ctx context.Context) error {
	pollers := b.plan.pollers
	databases, urls := make([]*database, pollers), make([]string, pollers)
	starts := make([]chan word, pollers)
	for i := range pollers {
		d, err := emptyOurs(ctx, b.server)
		if err != nil {
			return err
		}
		defer d.drop()
		databases[i], urls[i], starts[i] = d, d.url, make(chan word, 10)
	}
	p, err := startProcess(ctx, childSettings{URLs: urls, Relays: 1, Tell: true,
		Set: relaySettings{Kind: kindTx, Poll: pollInterval}})
	if err != nil {
		return err
	}
	defer p.stop()
	go func() {
		for w := range p.starts {
			starts[w.N%pollers] <- w
		}
	}()
	taken, errs := make([][]float64, pollers), make([]error, pollers)
	var group sync.WaitGroup
	for i, d := range databases {
		group.Go(func() {
			way := pickup{sidePolling, enqueueOne(d.DB), starts[i]}
			for n := 0; n < b.plan.polls && errs[i] == nil; n++ {
				pause(ctx, b.plan.settle/2+rand.N(time.Second))
				var ms float64
				ms, errs[i] = way.sample(ctx, n*pollers+i)
				taken[i] = append(taken[i], ms)
			}
		})
	}
	group.Wait()
	b.addLatency(sidePolling, slices.Concat(taken...))
	return errors.Join(errs...)
}
