package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
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
		says: `One task at a time, at random moments, on a queue where nothing else happens: the time from the return of COMMIT in the enqueuing process to the first line
of the handler, by the one clock of the machine; a handler that starts before COMMIT has returned counts as 0. All of ours with default settings and ListenDSN, but for polling only, which has none. Each sample waits
for the one before. Raw is an INSERT with pg_notify, and one prepared claim for each notification. It does not say what a busy queue's tasks wait: that is the backlog before them.`,
		metrics: []string{mP50, mP95, mP99, mMost, mCount}, chart: mP50,
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
	var closers []func()
	defer func() {
		for _, c := range closers {
			defer c()
		}
	}()
	var ways []pickup
	for _, open := range []func(context.Context) (*pickup, func(), error){b.pickupInside, b.pickupAcross, b.pickupRaw,
		func(ctx context.Context) (*pickup, func(), error) {
			return b.pickupRiver(ctx, sideRiverDefaults, river.Settings{Workers: 10})
		},
		func(ctx context.Context) (*pickup, func(), error) {
			return b.pickupRiver(ctx, sideRiverBench, river.Bench())
		},
	} {
		way, closeIt, err := open(ctx)
		if err != nil {
			return err
		}
		if way != nil {
			ways, closers = append(ways, *way), append(closers, closeIt)
		}
	}
	taken := map[string][]float64{}
	for n := range b.plan.pickups + 5 {
		rand.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
		for _, way := range ways {
			if way.side == sideRiverDefaults && (n+3)%4 > 0 && !b.plan.extras {
				continue // it takes longer than all others
			}
			ms, err := way.sample(ctx, n+1)
			if err != nil {
				return err
			}
			if n >= 5 {
				taken[way.side] = append(taken[way.side], ms)
			}
		}
		pause(ctx, 50*time.Millisecond+rand.N(b.plan.gap))
	}
	for _, way := range ways {
		b.addLatency(caseLatency, way.side, taken[way.side])
	}
	return b.polling(ctx)
}

func (b *bench) addLatency(caseName, side string, ms []float64) {
	for metric, q := range map[string]float64{mP50: 0.5, mP95: 0.95, mP99: 0.99, mMost: 1} {
		b.samples.Add(caseName, side, metric, 0, measure.Quantile(ms, q))
	}
	b.samples.Add(caseName, side, mCount, 0, float64(len(ms)))
}

func enqueueOne(db *sql.DB) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			_, err := benchTask.Enqueue(ctx, tx, load{N: n})
			return err
		})
	}
}

// defaultRelay is a relay at its defaults, with ListenDSN.
var defaultRelay = relaySettings{Kind: kindTx, Listen: true}

func (b *bench) pickupInside(ctx context.Context) (*pickup, func(), error) {
	d, err := b.server.fresh(ctx, "empty ours", buildEmpty)
	if err != nil {
		return nil, nil, err
	}
	starts := make(chan word, 100)
	stop, err := startRelay(ctx, d.url, defaultRelay, func(_ int, first load) {
		starts <- word{N: first.N, At: time.Now().UnixNano()}
	})
	if err != nil {
		d.drop()
		return nil, nil, err
	}
	enqueue := func(ctx context.Context, n int) error {
		return outbox.InTx(ctx, d.DB, func(tx *sql.Tx) error {
			_, err := benchTask.Enqueue(ctx, tx, load{N: n})
			return err
		})
	}
	return &pickup{sideInside, enqueue, starts}, func() { _ = stop(); d.drop() }, nil
}

func (b *bench) pickupAcross(ctx context.Context) (*pickup, func(), error) {
	d, err := b.server.fresh(ctx, "empty ours", buildEmpty)
	if err != nil {
		return nil, nil, err
	}
	p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Relays: 1, Set: defaultRelay, Tell: true})
	if err != nil {
		d.drop()
		return nil, nil, err
	}
	return &pickup{sideAcross, enqueueOne(d.DB), p.starts}, func() { _ = p.stop(); d.drop() }, nil
}

func (b *bench) pickupRaw(ctx context.Context) (*pickup, func(), error) {
	if !b.has(peerRaw) {
		return nil, nil, nil
	}
	s := rawSide("", 0, "", raw.Settings{})
	d, err := b.server.fresh(ctx, "empty raw", s.build)
	if err != nil {
		return nil, nil, err
	}
	p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Raw: true, Tell: true})
	if err != nil {
		d.drop()
		return nil, nil, err
	}
	enqueue := func(ctx context.Context, n int) error {
		payload, err := json.Marshal(load{N: n})
		if err != nil {
			return err
		}
		return inTx(ctx, d.DB, func(tx *sql.Tx) error { return raw.Notify(ctx, tx, taskType, string(payload)) })
	}
	return &pickup{sideRawWake, enqueue, p.starts}, func() { _ = p.stop(); d.drop() }, nil
}

func (b *bench) pickupRiver(ctx context.Context, name string, set river.Settings) (*pickup, func(), error) {
	if !b.has(peerRiver) {
		return nil, nil, nil
	}
	d, err := b.server.fresh(ctx, "empty river", buildEmptyRiver)
	if err != nil {
		return nil, nil, err
	}
	p, err := startProcess(ctx, childSettings{URLs: []string{d.url}, River: &set, Tell: true})
	if err != nil {
		d.drop()
		return nil, nil, err
	}
	client, err := river.Open(ctx, d.url, 2)
	if err != nil {
		_ = p.stop()
		d.drop()
		return nil, nil, err
	}
	enqueue := func(ctx context.Context, n int) error {
		return pgx.BeginFunc(ctx, client.Pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, river.Args{N: n}, nil)
			return err
		})
	}
	return &pickup{name, enqueue, p.starts}, func() { client.Close(); _ = p.stop(); d.drop() }, nil
}

// polling measures relays without ListenDSN, several side by side, as each sample takes seconds: a relay polls at its full
// interval only when nothing has happened for some time.
func (b *bench) polling(ctx context.Context) error {
	var urls []string
	var databases []*database
	for range b.plan.pollers {
		d, err := b.server.fresh(ctx, "empty ours", buildEmpty)
		if err != nil {
			return err
		}
		defer d.drop()
		databases, urls = append(databases, d), append(urls, d.url)
	}
	p, err := startProcess(ctx, childSettings{URLs: urls, Relays: 1, Set: relaySettings{Kind: kindTx, Poll: pollInterval}, Tell: true})
	if err != nil {
		return err
	}
	defer p.stop()
	starts := make([]chan word, b.plan.pollers)
	for i := range starts {
		starts[i] = make(chan word, 10)
	}
	go func() {
		for w := range p.starts {
			starts[w.N%b.plan.pollers] <- w
		}
	}()
	var group sync.WaitGroup
	var mu sync.Mutex
	var taken []float64
	errs := make([]error, b.plan.pollers)
	for i, d := range databases {
		group.Go(func() {
			way := pickup{sidePolling, enqueueOne(d.DB), starts[i]}
			for n := range b.plan.polls {
				pause(ctx, b.plan.settle/2+rand.N(time.Second))
				ms, err := way.sample(ctx, n*b.plan.pollers+i)
				if err != nil {
					errs[i] = err
					return
				}
				mu.Lock()
				taken = append(taken, ms)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	b.addLatency(caseLatency, sidePolling, taken)
	return nil
}
