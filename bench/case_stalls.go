package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox/bench/measure"
	"github.com/txoutbox/outbox/bench/timed"
)

const (
	caseStalls   = "stalls"
	stallWorkers = 32
	stallLength  = 100 * time.Millisecond
	killEvery    = 300 * time.Millisecond
	mClaimMost   = "claim most, ms"
	mResultP50   = "result p50, ms"
	mResultP99   = "result p99, ms"
	mResultMost  = "result most, ms"
	mPause       = "longest pause between starts, ms"
	mStalls      = "pauses over 100 ms"
)

func stallsCase() benchCase {
	return benchCase{
		name: caseStalls, budget: 5, title: "pauses of Leased handlers", run: stalls,
		says: `32 workers work on a backlog with a Leased handler that does nothing: the times of claims and of the statements that write results, by the driver's clock,
and the times in which no handler started. Alone, beside a transaction that is idle with a snapshot, and while one of the relay's backends is terminated every 300 ms.
Claims and results are of many tasks at once. The longest pause is of one turn: the more turns, the longer.`,
		metrics: []string{mPause, mStalls, mClaimP50, mClaimP99, mClaimMost, mResultP50, mResultP99, mResultMost, mRate},
	}
}

// disturbance is what happens beside a relay until end is called.
type disturbance struct {
	name  string
	begin func(ctx context.Context, db *sql.DB) (end func(), err error)
}

var disturbances = []disturbance{
	{"alone", func(context.Context, *sql.DB) (func(), error) { return func() {}, nil }},
	{"beside an idle transaction", hold},
	{"backends are terminated", terminating},
}

func stalls(ctx context.Context, b *bench) error {
	for round := range b.plan.infoRounds {
		for _, beside := range disturbances {
			if err := b.stallTurn(ctx, round, beside); err != nil {
				return fmt.Errorf("%s: %w", beside.name, err)
			}
		}
	}
	return nil
}

func (b *bench) stallTurn(ctx context.Context, round int, beside disturbance) error {
	tasks := b.plan.backlog
	d, err := b.server.fresh(ctx, fmt.Sprintf("ours %d %d", tasks, len(smallPayload)), fillOurs(tasks, taskType, smallPayload))
	if err != nil {
		return err
	}
	defer d.drop()
	end, err := beside.begin(ctx, d.DB)
	if err != nil {
		return err
	}
	defer end()
	timed.TakeAll()
	starts := startTimes{at: make([]time.Time, 0, tasks), first: make(chan struct{})}
	stop, err := startRelay(ctx, d.url, relaySettings{Kind: kindLeased, Workers: stallWorkers, Driver: timed.Name}, func(int, load) { starts.add() })
	if err != nil {
		return err
	}
	select {
	case <-starts.first:
		pause(ctx, b.plan.short)
		err = ctx.Err()
	case <-time.After(20 * time.Second):
		err = fmt.Errorf("no task was handled within 20 s")
	case <-ctx.Done():
		err = ctx.Err()
	}
	longest, many, rate := starts.pauses()
	took := timed.TakeAll()
	if stopErr := stop(); err != nil || stopErr != nil {
		return firstOf(err, stopErr)
	}
	add := func(metric string, v float64) { b.samples.Add(caseStalls, beside.name, metric, round, v) }
	claims, results := milliseconds(took[timed.Claim]), milliseconds(took[timed.Result])
	for metric, q := range map[string]float64{mClaimP50: 0.5, mClaimP99: 0.99, mClaimMost: 1} {
		add(metric, measure.Quantile(claims, q))
	}
	for metric, q := range map[string]float64{mResultP50: 0.5, mResultP99: 0.99, mResultMost: 1} {
		add(metric, measure.Quantile(results, q))
	}
	add(mPause, longest)
	add(mStalls, float64(many))
	add(mRate, rate)
	b.say("  %-34s round %d: %9.0f tasks/s, longest pause %.1f ms; claims up to %.1f ms, results up to %.1f ms", beside.name, round+1,
		rate, longest, measure.Quantile(claims, 1), measure.Quantile(results, 1))
	return nil
}

// startTimes are when handlers started, in their order. Its methods may be called at the same time.
type startTimes struct {
	mu    sync.Mutex
	at    []time.Time
	first chan struct{} // closed with the first
}

func (s *startTimes) add() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at = append(s.at, time.Now()); len(s.at) == 1 {
		close(s.first)
	}
}

// pauses are the longest time without a start in milliseconds, how many were stalls, and the starts a second.
func (s *startTimes) pauses() (longest float64, stalls int, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at
	if len(at) == 0 {
		return 0, 0, 0
	}
	for i := range at[1:] {
		pause := at[i+1].Sub(at[i])
		longest = max(longest, float64(pause.Microseconds())/1000)
		if pause > stallLength {
			stalls++
		}
	}
	return longest, stalls, float64(len(at)) / max(time.Millisecond, at[len(at)-1].Sub(at[0])).Seconds()
}

const terminateSQL = `/* bench: terminate */
SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity
  WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%outbox%' ORDER BY random() LIMIT 1) one`

// terminating ends a backend of the relay's every killEvery.
func terminating(ctx context.Context, db *sql.DB) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		ticker := time.NewTicker(killEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_, _ = db.ExecContext(ctx, terminateSQL)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); ended.Wait() }, nil
}
