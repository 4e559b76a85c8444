package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseEnqueue    = "enqueue"
	enqueuers      = 8
	busyType       = "BUSY"
	mSpeed         = "transactions/s"
	sideEnqueue    = "outbox Enqueue"
	sideBare       = "bare INSERT"
	sideHeld       = "outbox Enqueue, beside a held snapshot"
	sideBareHeld   = "bare INSERT, beside a held snapshot"
	sideRiverTx    = "River InsertTx"
	sidePrepared   = "raw: prepared INSERT"
	mRelayMeantime = "tasks/s of the relay meanwhile"
)

func enqueueCase() benchCase {
	return benchCase{
		name: caseEnqueue, budget: 34, title: "one task a transaction, from 8 connections, while a relay is busy", run: enqueueing,
		says: `BEGIN, one task, COMMIT, from 8 connections of this process, while a relay in another process
works off tasks of another type with four workers of a Leased handler, whose calls take 2 ms. The
bare INSERT goes into a table with the same columns, checks and indexes, and no trigger, through
the same driver, beside the same relay; the raw one is prepared, which saves a round trip and the
planning. River is on pgx, which prepares its statements, with a client beside it whose four
workers take 2 ms as well. It does not say what Enqueue adds to a transaction that does more than
that: less.`,
		metrics: []string{mSpeed, mRelayMeantime},
	}
}

const bareInsertSQL = `/* bench: a bare enqueue */
INSERT INTO bare (task_type, payload) VALUES ($1, $2::jsonb)`

func enqueueing(ctx context.Context, b *bench) error {
	for round := range b.plan.rounds {
		if err := b.enqueueRound(ctx, round); err != nil {
			return err
		}
		if err := b.enqueueRiver(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// transactions are those of one side.
type transactions struct {
	side string
	do   func(ctx context.Context, n int) error
}

func (b *bench) enqueueRound(ctx context.Context, round int) error {
	d, err := b.server.fresh(ctx, "enqueue", buildOurs(busyType, 100_000))
	if err != nil {
		return err
	}
	defer d.drop()
	d.SetMaxIdleConns(enqueuers)
	busy, err := startProcess(ctx, childSettings{URLs: []string{d.url}, Relays: 1, Set: relaySettings{
		Kind: kindLeased, Workers: 4, Types: []string{busyType}, Pause: 2 * time.Millisecond, Listen: true}})
	if err != nil {
		return err
	}
	defer busy.stop()
	ours := enqueueOne(d.DB)
	bare := insertBare(d.DB, func(ctx context.Context, tx *sql.Tx, args ...any) error {
		_, err := tx.ExecContext(ctx, bareInsertSQL, args...)
		return err
	})
	statement, err := d.PrepareContext(ctx, bareInsertSQL)
	if err != nil {
		return err
	}
	defer statement.Close()
	prepared := insertBare(d.DB, func(ctx context.Context, tx *sql.Tx, args ...any) error {
		_, err := tx.StmtContext(ctx, statement).ExecContext(ctx, args...)
		return err
	})
	compared := []transactions{{sideEnqueue, ours}, {sideBare, bare}}
	held := []transactions{{sideHeld, ours}, {sideBareHeld, bare}}
	if round%2 == 1 {
		slices.Reverse(compared)
		slices.Reverse(held)
	}
	if err := b.hammer(ctx, round, busy, append(compared, transactions{sidePrepared, prepared})); err != nil {
		return err
	}
	release, err := hold(ctx, d.DB)
	if err != nil {
		return err
	}
	defer release()
	return b.hammer(ctx, round, busy, held)
}

// insertBare inserts task n into the bare table in a transaction.
func insertBare(db *sql.DB, exec func(ctx context.Context, tx *sql.Tx, args ...any) error) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			payload, err := json.Marshal(load{N: n})
			if err != nil {
				return err
			}
			return exec(ctx, tx, taskType, string(payload))
		})
	}
}

func (b *bench) enqueueRiver(ctx context.Context, round int) error {
	s := riverSide("", 100_000, river.Settings{})
	d, err := b.server.fresh(ctx, s.key, s.build)
	if err != nil {
		return err
	}
	defer d.drop()
	set := river.Bench()
	set.Workers = 4
	busy, err := startProcess(ctx, childSettings{URLs: []string{d.url}, River: &set,
		Set: relaySettings{Pause: 2 * time.Millisecond}})
	if err != nil {
		return err
	}
	defer busy.stop()
	client, err := river.Open(ctx, d.url, enqueuers+2)
	if err != nil {
		return err
	}
	defer client.Close()
	return b.hammer(ctx, round, busy, []transactions{{sideRiverTx, client.InsertOne}})
}

// hammer lets each of the sides go on for the plan's time, after a tenth of it that does not count.
func (b *bench) hammer(ctx context.Context, round int, busy *process, sides []transactions) error {
	for _, t := range sides {
		if _, err := hammerFor(ctx, b.plan.enqueue/10, t.do); err != nil {
			return fmt.Errorf("%s: %w", t.side, err)
		}
		_, before, err := busy.usage()
		if err != nil {
			return err
		}
		began := time.Now()
		rate, err := hammerFor(ctx, b.plan.enqueue, t.do)
		if err != nil {
			return fmt.Errorf("%s: %w", t.side, err)
		}
		_, after, err := busy.usage()
		if err != nil {
			return err
		}
		meantime := float64(after-before) / time.Since(began).Seconds()
		b.samples.Add(caseEnqueue, t.side, mSpeed, round, rate)
		b.samples.Add(caseEnqueue, t.side, mRelayMeantime, round, meantime)
		b.say("  %-40s round %d: %7.0f transactions/s (the relay: %.0f tasks/s)", t.side, round+1, rate, meantime)
	}
	return nil
}

// hammerFor calls do from all connections for d and returns how often a second.
func hammerFor(ctx context.Context, d time.Duration, do func(context.Context, int) error) (float64, error) {
	var n atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, enqueuers)
	began := time.Now()
	for i := range enqueuers {
		group.Go(func() {
			for errs[i] == nil && time.Since(began) < d && ctx.Err() == nil {
				if errs[i] = do(ctx, int(n.Load())); errs[i] == nil {
					n.Add(1)
				}
			}
		})
	}
	group.Wait()
	rate := float64(n.Load()) / time.Since(began).Seconds()
	return rate, errors.Join(append(errs, ctx.Err())...)
}

// hold opens a REPEATABLE READ transaction that has a snapshot, so that vacuum removes nothing that
// dies from now on.
func hold(ctx context.Context, db *sql.DB) (release func(), err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `SELECT count(*) FROM pg_class`); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return func() { _ = tx.Rollback() }, nil
}
