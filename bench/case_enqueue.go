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
)

var enqueueCase = benchCase{
	name: caseEnqueue, title: "one task a transaction, from 8 connections, while a relay is busy", run: enqueueing,
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
		err := b.beside(ctx, ours, relay, func(d *database) error {
			compared := []side{{name: sideEnqueue, open: oursClient}, {name: sideBare, open: bareClient}}
			held := []side{{name: sideHeld, open: oursClient}, {name: sideBareHeld, open: bareClient}}
			if round%2 == 1 {
				slices.Reverse(compared)
				slices.Reverse(held)
			}
			compared = append(compared, side{name: sidePrepared, open: preparedClient},
				side{name: sideEnqueuePgx, open: onPgx(oursClient)}, side{name: sidePreparePgx, open: onPgx(preparedClient)})
			if err := b.hammer(ctx, round, d, compared); err != nil {
				return err
			}
			release, err := hold(ctx, d.DB)
			if err != nil {
				return err
			}
			defer release()
			return b.hammer(ctx, round, d, held)
		})
		if err != nil {
			return err
		}
		err = b.beside(ctx, riverSide("", busyBacklog, river.Settings{}), worker, func(d *database) error {
			return b.hammer(ctx, round, d, []side{{name: sideRiverTx, open: riverClient}})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// beside calls do with a database of the side's on which a child works.
func (b *bench) beside(ctx context.Context, s side, set ChildSettings,
	do func(d *database) error) error {
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
	return do(d)
}

// hammer lets each of the sides go on for the plan's time, after a tenth of it that does not count.
func (b *bench) hammer(ctx context.Context, round int, d *database, sides []side) error {
	for _, s := range sides {
		if err := b.hammerSide(ctx, turn{s, caseEnqueue, round}, d); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) hammerSide(ctx context.Context, t turn, d *database) error {
	c, err := t.open(ctx, d)
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := repeat(ctx, enqueuers, b.plan.enqueue/10, 0, c.one); err != nil {
		return err
	}
	began := time.Now()
	n, err := repeat(ctx, enqueuers, b.plan.enqueue, 0, c.one)
	if err != nil {
		return err
	}
	b.add(t, mSpeed, float64(n)/time.Since(began).Seconds())
	return nil
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
