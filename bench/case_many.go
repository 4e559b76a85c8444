package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseMany      = "enqueue-many"
	manySize      = 5000
	sideMany      = "outbox EnqueueMany"
	sideUnnest    = "bare INSERT … SELECT FROM unnest"
	sideRiverFast = "River InsertManyFast (COPY)"
	sideRiverMany = "River InsertMany"
)

func manyCase() benchCase {
	return benchCase{
		name: caseMany, budget: 22, title: "5,000 tasks a call, one connection", run: enqueueMany,
		says: `Calls of 5,000 tasks, each in a transaction, one after the other on one connection, nothing else going on. All sides start from Go values, so encoding them as JSON is included.
The bare statement goes through lib/pq into a table with the same columns, checks and indexes and no trigger, and does not return the ids, as EnqueueMany does. River is on pgx; InsertManyFast uses COPY and returns no ids either.`,
		metrics: []string{mRate, mCPU, mAllocs}, chart: mRate,
	}
}

const bareManySQL = `/* bench: bare enqueues */
INSERT INTO bare (task_type, payload) SELECT task_type, payload::jsonb FROM unnest($1::text[], $2::text[]) AS n (task_type, payload)`

func enqueueMany(ctx context.Context, b *bench) error {
	ours := func(ctx context.Context, d *database) (func(n int) error, error) {
		return func(n int) error {
			tasks := make([]outbox.NewTask, n)
			for i := range tasks {
				tasks[i] = benchTask.New(load{N: i})
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := outbox.EnqueueMany(ctx, tx, tasks)
				return err
			})
		}, nil
	}
	bare := func(ctx context.Context, d *database) (func(n int) error, error) {
		return func(n int) error {
			types, payloads := make([]string, n), make([]string, n)
			for i := range types {
				payload, err := json.Marshal(load{N: i})
				if err != nil {
					return err
				}
				types[i], payloads[i] = taskType, string(payload)
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, bareManySQL, pq.Array(types), pq.Array(payloads))
				return err
			})
		}, nil
	}
	riverBy := func(insert func(context.Context, *river.Client, int) error) func(context.Context, *database) (func(n int) error, error) {
		return func(ctx context.Context, d *database) (func(int) error, error) {
			client, err := river.Open(ctx, d.url, 2)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, client.Close)
			return func(n int) error { return insert(ctx, client, n) }, nil
		}
	}
	fast := riverBy(func(ctx context.Context, c *river.Client, n int) error {
		_, err := c.InsertManyFast(ctx, river.Jobs(n, ""))
		return err
	})
	many := riverBy(func(ctx context.Context, c *river.Client, n int) error {
		_, err := c.InsertMany(ctx, river.Jobs(n, ""))
		return err
	})
	for round := range b.plan.rounds {
		for _, s := range []struct {
			side, peer, key string
			build           func(context.Context, *database) error
			open            func(context.Context, *database) (func(int) error, error)
			informative     bool
		}{
			{sideMany, "", "empty ours", buildEmpty, ours, false},
			{sideUnnest, "", "empty ours", buildEmpty, bare, false},
			{sideRiverFast, peerRiver, "empty river", buildEmptyRiver, fast, false},
			{sideRiverMany, peerRiver, "empty river", buildEmptyRiver, many, true},
		} {
			if !b.has(s.peer) || s.informative && round >= b.plan.infoRounds {
				continue
			}
			if err := b.manyTurn(ctx, round, s.side, s.key, s.build, s.open); err != nil {
				return err
			}
		}
	}
	return nil
}

// buildEmpty is ours and a bare table, buildEmptyRiver is River's, without tasks.
func buildEmpty(ctx context.Context, d *database) error {
	if err := fillOurs(0, "", "")(ctx, d); err != nil {
		return err
	}
	return d.exec(ctx, bareTableSQL)
}

func buildEmptyRiver(ctx context.Context, d *database) error { return river.Setup(ctx, d.url) }

func (b *bench) manyTurn(ctx context.Context, round int, side, key string, build func(context.Context, *database) error, open func(context.Context, *database) (func(int) error, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d, err := b.server.fresh(ctx, key, build)
	if err != nil {
		return err
	}
	defer d.drop()
	call, err := open(ctx, d)
	if err != nil {
		return err
	}
	if err := call(manySize); err != nil { // connects, and does not count
		return err
	}
	before, began := usage(), time.Now()
	for range b.plan.many / manySize {
		if err := call(manySize); err != nil {
			return err
		}
	}
	elapsed, after, n := time.Since(began), usage(), float64(b.plan.many)
	b.samples.Add(caseMany, side, mRate, round, n/elapsed.Seconds())
	b.samples.Add(caseMany, side, mCPU, round, float64((after.cpu-before.cpu).Microseconds())/n)
	b.samples.Add(caseMany, side, mAllocs, round, float64(after.mallocs-before.mallocs)/n)
	b.say("  %-34s round %d: %9.0f tasks/s", side, round+1, n/elapsed.Seconds())
	return nil
}
