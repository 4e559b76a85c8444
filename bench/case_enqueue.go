package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
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
	sideEnqueuePgx = "outbox Enqueue, on pgx"
	sidePreparePgx = "raw: prepared INSERT, on pgx"
	mRelayMeantime = "tasks/s of the relay meanwhile"
)

var enqueueCase = benchCase{
	name: caseEnqueue, budget: 50, title: "one task a transaction, from 8 connections, while a relay is busy", run: enqueueing,
	says: `BEGIN, one task, COMMIT, from 8 connections of this process, while a relay in another process works
off tasks of another type with four workers of a Leased handler, whose calls take 2 ms. The bare
INSERT goes into a table with the same columns, checks and indexes, and no trigger, through the same
driver, beside the same relay; the raw one is prepared, which saves a round trip and the planning,
as pgx does by itself. River is on pgx, which prepares its statements, with a client beside it whose
four workers take 2 ms as well. It does not say what Enqueue adds to a transaction that does more
than that: less.`,
	metrics: []string{mSpeed, mRelayMeantime},
}

// busyBacklog is the tasks that the busy relay works off meanwhile.
const busyBacklog = 100_000

func enqueueing(ctx context.Context, b *bench) error {
	work := 2 * time.Millisecond
	ours := oursSide("", busyBacklog, relaySettings{})
	ours.key, ours.build = "enqueue", buildOurs(busyType, busyBacklog)
	relay := ChildSettings{Relays: 1, Set: relaySettings{
		Kind: kindLeased, Workers: 4, Types: []string{busyType}, Pause: work, Listen: true}}
	set := river.Bench()
	set.Workers = 4
	worker := ChildSettings{River: &set, Set: relaySettings{Pause: work}}
	for round := range b.plan.rounds {
		err := b.beside(ctx, ours, relay, func(d *database, busy *process) error {
			compared := []side{{name: sideEnqueue, open: oursClient}, {name: sideBare, open: bareClient}}
			held := []side{{name: sideHeld, open: oursClient}, {name: sideBareHeld, open: bareClient}}
			if round%2 == 1 {
				slices.Reverse(compared)
				slices.Reverse(held)
			}
			compared = append(compared, side{name: sidePrepared, open: preparedClient},
				side{name: sideEnqueuePgx, open: onPgx(oursClient)}, side{name: sidePreparePgx, open: onPgx(preparedClient)})
			if err := b.hammer(ctx, round, d, busy, compared); err != nil {
				return err
			}
			release, err := hold(ctx, d.DB)
			if err != nil {
				return err
			}
			defer release()
			return b.hammer(ctx, round, d, busy, held)
		})
		if err != nil {
			return err
		}
		err = b.beside(ctx, riverSide("", busyBacklog, river.Settings{}), worker, func(d *database, busy *process) error {
			return b.hammer(ctx, round, d, busy, []side{{name: sideRiverTx, open: riverClient}})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// beside calls do with a database of the side's on which a child works.
func (b *bench) beside(ctx context.Context, s side, set ChildSettings,
	do func(d *database, busy *process) error) error {
	d, err := b.server.fresh(ctx, s)
	if err != nil {
		return err
	}
	defer d.drop()
	d.SetMaxIdleConns(enqueuers)
	set.URLs = []string{d.url}
	busy, err := startProcess(ctx, set)
	if err != nil {
		return err
	}
	defer busy.stop()
	return do(d, busy)
}

// hammer lets each of the sides go on for the plan's time, after a tenth of it that does not count.
func (b *bench) hammer(ctx context.Context, round int, d *database, busy *process, sides []side) error {
	for _, s := range sides {
		if err := b.hammerSide(ctx, turn{s, caseEnqueue, round}, d, busy); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) hammerSide(ctx context.Context, t turn, d *database, busy *process) error {
	c, err := t.open(ctx, d)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := repeat(ctx, enqueuers, b.plan.enqueue/10, 0, c.one); err != nil {
		return err
	}
	before, err := busy.used(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := repeat(ctx, enqueuers, b.plan.enqueue, 0, c.one)
	if err != nil {
		return err
	}
	rate := float64(n) / time.Since(began).Seconds()
	after, err := busy.used(ctx)
	meantime := float64(after.Done-before.Done) / time.Since(began).Seconds()
	b.add(t, mSpeed, rate)
	b.add(t, mRelayMeantime, meantime)
	b.say("  %-40s round %d: %7.0f transactions/s (the relay: %.0f tasks/s)", t.name, t.round+1, rate, meantime)
	return err
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
