package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

const (
	mWAL          = "WAL bytes/task"
	sideWALRiver  = "River"
	sideWALBatch  = "outbox Batch"
	sideWALTx     = "outbox Tx"
	sideWALLeased = "outbox Leased"
	sideWALGroup  = "outbox Tx, GroupCommit(32)"
	rawPrefix     = "raw, as "
	walChunk      = 1000
)

func walSides(p plan) []side {
	of := func(s side, tasks int) side { // begins with an empty database
		s.tasks = tasks
		return s
	}
	many, few := p.walTasks, p.walTasks/5
	group := relaySettings{Kind: kindTx, Workers: 6, Group: 32, Within: groupWithin}
	return []side{
		of(oursSide(sideWALBatch, 0, batchSettings), many),
		of(rawSide(rawPrefix+sideWALBatch, 0, rawBatch), many),
		of(riverSide(sideWALRiver, 0, river.Bench()), many),
		of(oursSide(sideWALTx, 0, txSettings), few),
		of(rawSide(rawPrefix+sideWALTx, 0, raw.Settings{Workers: 10, Batch: 1}), few),
		of(oursSide(sideWALGroup, 0, group), many),
		of(rawSide(rawPrefix+sideWALGroup, 0, raw.Settings{Workers: 10, Batch: 32, Group: true}), many),
		of(oursSide(sideWALLeased, 0, leasedSettings), few),
		of(rawSide(rawPrefix+sideWALLeased, 0, rawLeased), many),
	}
}

func walTurn(ctx context.Context, b *bench, t turn) error {
	if err := b.server.autovacuum(ctx, `SET autovacuum = off`); err != nil {
		return err
	}
	defer b.server.autovacuum(context.WithoutCancel(ctx), `RESET autovacuum`)
	return b.server.with(ctx, t.side, func(d *database, c client) error {
		// The warm-up is a tenth of the tasks, so that few pages are touched for the first time since
		// the checkpoint.
		if _, err := b.server.wal(ctx, d, t.side, c, t.tasks/10); err != nil {
			return err
		}
		bytes, err := b.server.wal(ctx, d, t.side, c, t.tasks)
		b.add(t, mWAL, bytes/float64(t.tasks))
		return err
	})
}

func (s *server) autovacuum(ctx context.Context, setting string) error {
	_, err1 := s.admin.ExecContext(ctx, `ALTER SYSTEM `+setting)
	_, err2 := s.admin.ExecContext(ctx, `SELECT pg_reload_conf()`)
	return errors.Join(err1, err2)
}

const positionSQL = `/* bench: the end of the log */
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

// wal is what the log grows by while n tasks are enqueued, 1,000 a transaction, and worked off.
func (s *server) wal(ctx context.Context, d *database, of side, c client, n int) (float64, error) {
	var start, end float64
	if err := s.admin.QueryRowContext(ctx, positionSQL).Scan(&start); err != nil {
		return 0, err
	}
	for left := n; left > 0; left -= walChunk {
		if err := c.many(ctx, min(left, walChunk)); err != nil {
			return 0, err
		}
	}
	of.tasks = n
	if _, err := workOff(ctx, of, d, time.Minute); err != nil {
		return 0, fmt.Errorf("work off: %w", err)
	}
	err := s.admin.QueryRowContext(ctx, positionSQL).Scan(&end)
	return end - start, err
}
