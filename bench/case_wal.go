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
	mWALEnqueue   = "of them to enqueue"
	mWALImages    = "full-page images/task"
	mWALVacuum    = "WAL bytes/task of a VACUUM afterwards"
	mWALDead      = "dead tuples/task before it"
	sideWALRiver  = "River"
	sideWALBatch  = "outbox Batch"
	sideWALTx     = "outbox Tx"
	sideWALLeased = "outbox Leased"
	sideWALGroup  = "outbox Tx, GroupCommit(32)"
	rawPrefix     = "raw, as "
	walChunk      = 1000
)

var walCase = benchCase{
	name: caseWAL, budget: 22, title: "WAL from enqueue to done",
	sides: walSides, turn: walTurn,
	says: `How much write-ahead log a task costs, from its enqueue to the commit that ends it: what goes to the
disk, to replicas and into the archive. Tasks are enqueued 1,000 a transaction; then they are worked
off. Each turn begins with a checkpoint and a tenth of the tasks as a warm-up, so that few pages are
touched for the first time since the checkpoint; the full-page images that remain are counted.
Groups have the settings of the case "insert". Autovacuum is off meanwhile; what a VACUUM writes
afterwards is told apart. It does not say what larger payloads cost: each byte of them is written
once by all sides.`,
	metrics: []string{mWAL, mWALEnqueue, mWALImages, mWALVacuum, mWALDead},
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

func (b *bench) walOf(ctx context.Context, t turn, d *database, c client) error {
	if _, err := b.walPass(ctx, d, t.side, c, t.tasks/10); err != nil { // the warm-up
		return err
	}
	p, err := b.walPass(ctx, d, t.side, c, t.tasks)
	if err != nil {
		return err
	}
	var dead float64
	if err := d.QueryRowContext(ctx, deadSQL).Scan(&dead); err != nil {
		return err
	}
	if err := d.exec(ctx, `VACUUM`); err != nil {
		return err
	}
	vacuumed, err := b.position(ctx)
	for metric, sum := range map[string]float64{
		mWAL: p.done.bytes - p.start.bytes, mWALEnqueue: p.enqueued.bytes - p.start.bytes,
		mWALImages: p.done.images - p.start.images, mWALDead: dead, mWALVacuum: vacuumed.bytes - p.done.bytes,
	} {
		b.add(t, metric, sum/float64(t.tasks))
	}
	return err
}

// position is where the log ends, and how many full-page images it had so far.
type position struct{ bytes, images float64 }

const positionSQL = `/* bench: the end of the log */
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, wal_fpi FROM pg_stat_wal`

const deadSQL = `/* bench: dead tuples */
SELECT COALESCE(sum(n_dead_tup), 0) FROM pg_stat_user_tables`

func (b *bench) position(ctx context.Context) (p position, err error) {
	return p, b.server.admin.QueryRowContext(ctx, positionSQL).Scan(&p.bytes, &p.images)
}

// pass is where the log ended at the start, after the enqueues, and when all was done.
type pass struct{ start, enqueued, done position }

func (b *bench) walPass(ctx context.Context, d *database, s side, c client, n int) (p pass, err error) {
	if p.start, err = b.position(ctx); err != nil {
		return p, err
	}
	for left := n; left > 0; left -= walChunk {
		if err := c.many(ctx, min(left, walChunk)); err != nil {
			return p, err
		}
	}
	if p.enqueued, err = b.position(ctx); err != nil {
		return p, err
	}
	s.tasks = n
	if _, err := workOff(ctx, s, d, time.Minute); err != nil {
		return p, fmt.Errorf("work off: %w", err)
	}
	p.done, err = b.position(ctx)
	return p, err
}
