package main

import (
	"context"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	caseWAL       = "wal"
	mWAL          = "WAL bytes/task"
	sideWALRiver  = "River"
	sideWALBatch  = "outbox Batch"
	sideWALTx     = "outbox Tx"
	sideWALLeased = "outbox Leased"
	sideWALGroup  = "outbox Tx, GroupCommit(32)"
	rawPrefix     = "raw, as "
	walChunk      = 1000
)

var walCase = benchCase{
	name: caseWAL, title: "WAL from enqueue to done",
	sides: walSides, turn: walTurn,
}

func walSides(p plan) []side {
	of := func(s side, tasks int) side { // begins with an empty database
		s.tasks = tasks
		return s
	}
	many, few := p.walTasks, p.walTasks/5
	return []side{
		of(oursSide(sideWALBatch, 0, batchSettings), many),
		of(rawSide(rawPrefix+sideWALBatch, 0, raw.Settings{Workers: batchWorkers, Batch: batchSize}), many),
		of(riverSide(sideWALRiver, 0, river.Bench()), many),
		of(oursSide(sideWALTx, 0, txSettings), few),
		of(rawSide(rawPrefix+sideWALTx, 0, raw.Settings{Workers: txWorkers, Batch: 1}), few),
		of(oursSide(sideWALGroup, 0, relaySettings{Kind: kindTx, Workers: 6, Group: 32, Within: groupWithin}), many),
		of(rawSide(rawPrefix+sideWALGroup, 0, raw.Settings{Workers: 10, Batch: 32, Group: true}), many),
		of(oursSide(sideWALLeased, 0, leasedSettings), few),
		of(rawSide(rawPrefix+sideWALLeased, 0, raw.Settings{Workers: leasedClaims, Batch: leasedGroup, Leased: true}), many),
	}
}

func (b *bench) autovacuum(ctx context.Context, setting string) error {
	for _, s := range []string{`ALTER SYSTEM ` + setting, `SELECT pg_reload_conf()`} {
		if _, err := b.server.admin.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func walTurn(ctx context.Context, b *bench, t turn) error {
	if err := b.autovacuum(ctx, `SET autovacuum = off`); err != nil {
		return err
	}
	defer b.autovacuum(context.WithoutCancel(ctx), `RESET autovacuum`)
	return b.with(ctx, t.side, func(d *database, c client) error { return b.walOf(ctx, t, d, c) })
}

// walOf counts what the log grew by after a warm-up of a tenth of the tasks, so that few pages are
// touched for the first time since the checkpoint.
func (b *bench) walOf(ctx context.Context, t turn, d *database, c client) error {
	if _, err := b.walPass(ctx, d, t.side, c, t.tasks/10); err != nil {
		return err
	}
	bytes, err := b.walPass(ctx, d, t.side, c, t.tasks)
	b.add(t, mWAL, bytes/float64(t.tasks))
	return err
}

const positionSQL = `/* bench: the end of the log */
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

func (b *bench) position(ctx context.Context) (bytes float64, err error) {
	return bytes, b.server.admin.QueryRowContext(ctx, positionSQL).Scan(&bytes)
}

// walPass enqueues n tasks, 1,000 a transaction, and works them off.
func (b *bench) walPass(ctx context.Context, d *database, s side, c client, n int) (bytes float64, err error) {
	start, err := b.position(ctx)
	if err != nil {
		return 0, err
	}
	for left := n; left > 0; left -= walChunk {
		if err := c.many(ctx, min(left, walChunk)); err != nil {
			return 0, err
		}
	}
	s.tasks = n
	if _, err := workOff(ctx, s, d, time.Minute); err != nil {
		return 0, fmt.Errorf("work off: %w", err)
	}
	end, err := b.position(ctx)
	return end - start, err
}
