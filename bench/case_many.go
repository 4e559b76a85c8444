package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseMany      = "enqueue-many"
	manySize      = 5000
	sideMany      = "outbox EnqueueMany"
	sideUnnest    = "bare INSERT … SELECT FROM unnest"
	sideRiverFast = "River InsertManyFast (COPY)"
)

func manyCase() benchCase {
	return benchCase{
		name: caseMany, budget: 22, title: "5,000 tasks a call, one connection", run: enqueueMany,
		says: `Calls of 5,000 tasks, each in a transaction, one after the other on one connection, nothing else
going on. All sides start from Go values, so encoding them as JSON is included. The bare statement
goes through lib/pq into a table with the same columns, checks and indexes and no trigger, and
does not return the ids, as EnqueueMany does. River is on pgx; InsertManyFast uses COPY and
returns no ids either.`,
		metrics: []string{mRate, mCPU, mAllocs},
	}
}

const bareManySQL = `/* bench: bare enqueues */
INSERT INTO bare (task_type, payload)
SELECT task_type, payload::jsonb FROM unnest($1::text[], $2::text[]) AS n (task_type, payload)`

// manySide is a way to enqueue n tasks in a transaction.
type manySide struct {
	name  string
	fresh func(context.Context, *server) (*database, error)
	open  func(context.Context, *database) (call func(n int) error, close func(), err error)
}

func enqueueMany(ctx context.Context, b *bench) error {
	sides := []manySide{
		{sideMany, emptyOurs, manyOurs}, {sideUnnest, emptyOurs, manyBare}, {sideRiverFast, emptyRiver, manyRiver},
	}
	for round := range b.plan.rounds {
		for _, s := range sides {
			if err := b.manyTurn(ctx, round, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func manyOurs(ctx context.Context, d *database) (func(int) error, func(), error) {
	return func(n int) error { return enqueueAll(ctx, d.DB, n) }, func() {}, nil
}

func manyBare(ctx context.Context, d *database) (func(int) error, func(), error) {
	return func(n int) error {
		types, payloads := make([]string, n), make([]string, n)
		for i := range types {
			payload, err := json.Marshal(load{N: 100_000 + i})
			if err != nil {
				return err
			}
			types[i], payloads[i] = taskType, string(payload)
		}
		return inTx(ctx, d.DB, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, bareManySQL, pq.Array(types), pq.Array(payloads))
			return err
		})
	}, func() {}, nil
}

func manyRiver(ctx context.Context, d *database) (func(int) error, func(), error) {
	client, err := river.Open(ctx, d.url, 2)
	if err != nil {
		return nil, nil, err
	}
	return func(n int) error {
		_, err := client.InsertManyFast(ctx, river.Jobs(n))
		return err
	}, client.Close, nil
}

func (b *bench) manyTurn(ctx context.Context, round int, s manySide) error {
	d, err := s.fresh(ctx, b.server)
	if err != nil {
		return err
	}
	defer d.drop()
	call, closeSide, err := s.open(ctx, d)
	if err != nil {
		return err
	}
	defer closeSide()
	if err := call(manySize); err != nil { // connects, and does not count
		return err
	}
	before, began := usageNow(), time.Now()
	for range b.plan.many / manySize {
		if err := call(manySize); err != nil {
			return err
		}
	}
	rate := float64(b.plan.many) / time.Since(began).Seconds()
	cpu, mallocs, _ := perTask(before, usageNow(), b.plan.many)
	b.samples.Add(caseMany, s.name, mRate, round, rate)
	b.samples.Add(caseMany, s.name, mCPU, round, cpu)
	b.samples.Add(caseMany, s.name, mAllocs, round, mallocs)
	b.say("  %-34s round %d: %9.0f tasks/s", s.name, round+1, rate)
	return nil
}
