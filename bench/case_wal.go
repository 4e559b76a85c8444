package main

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/measure"
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
	walOneByOne   = ", enqueued one by one"
	sideWALBatch  = "outbox Batch"
	sideWALTx     = "outbox Tx"
	sideWALLeased = "outbox Leased"
	rawPrefix     = "raw, as "
	walChunk      = 1000
)

func walCase() benchCase {
	return benchCase{
		name: caseWAL, budget: 27, title: "WAL from enqueue to done", run: wal,
		says: `How much write-ahead log a task costs, from its enqueue to the commit that ends it: what goes to the disk, to replicas and into the archive. Tasks are enqueued
1,000 a transaction, and in the lines that say so one a transaction; then they are worked off. Each turn begins with a checkpoint and a tenth of the tasks as a warm-up, so that few pages are touched for the first time since the checkpoint; the full-page images that remain are counted.
Autovacuum is off meanwhile; what a VACUUM writes afterwards is told apart. It does not say what larger payloads cost: each byte of them is written once by all sides.`,
		metrics: []string{mWAL, mWALEnqueue, mWALImages, mWALVacuum, mWALDead}, chart: mWAL,
	}
}

// walSide is how one side enqueues and works.
type walSide struct {
	side
	tasks   int
	enqueue func(ctx context.Context, d *database, n int) error
}

func wal(ctx context.Context, b *bench) error {
	if err := b.autovacuum(ctx, "off"); err != nil {
		return err
	}
	defer b.autovacuum(context.WithoutCancel(ctx), "")
	many, few := b.plan.walTasks, b.plan.walTasks/5
	ours := func(name string, n int, set relaySettings, one bool) walSide {
		return walSide{oursSide(name, 0, "", set), n, enqueueOurs(one)}
	}
	bare := func(name string, n int, set raw.Settings, one bool) walSide {
		return walSide{rawSide(rawPrefix+name, 0, "", set), n, enqueueRaw(one)}
	}
	theirs := func(name string, n int, one bool) walSide {
		return walSide{riverSide(name, 0, "", river.Bench()), n, enqueueRiver(one)}
	}
	rawBatch, rawTx := raw.Settings{Workers: batchWorkers, Batch: batchSize}, raw.Settings{Workers: txWorkers, Batch: 1}
	rawLeased := raw.Settings{Workers: leasedClaims, Batch: leasedGroup, Leased: true}
	compared := []walSide{
		ours(sideWALBatch, many, batchSettings, false), bare(sideWALBatch, many, rawBatch, false), theirs(sideWALRiver, many, false),
		ours(sideWALTx, few, txSettings, false), bare(sideWALTx, few, rawTx, false),
		ours(sideWALLeased, few, leasedSettings, false), bare(sideWALLeased, many, rawLeased, false),
	}
	single := []walSide{
		ours(sideWALBatch+walOneByOne, few, batchSettings, true), bare(sideWALBatch+walOneByOne, few, rawBatch, true),
		ours(sideWALTx+walOneByOne, few, txSettings, true), bare(sideWALTx+walOneByOne, few, rawTx, true),
		ours(sideWALLeased+walOneByOne, few, leasedSettings, true), bare(sideWALLeased+walOneByOne, few, rawLeased, true),
		theirs(sideWALRiver+walOneByOne, few, true),
	}
	for round := range b.plan.rounds {
		sides := compared
		if b.plan.extras && round < b.plan.infoRounds {
			sides = append(sides[:len(sides):len(sides)], single...)
		}
		for _, s := range sides {
			if !b.has(s.peer) {
				continue
			}
			if err := b.walTurn(ctx, round, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func (b *bench) autovacuum(ctx context.Context, value string) error {
	statement := `ALTER SYSTEM RESET autovacuum`
	if value != "" {
		statement = `ALTER SYSTEM SET autovacuum = ` + value
	}
	for _, s := range []string{statement, `SELECT pg_reload_conf()`} {
		if _, err := b.server.admin.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) walTurn(ctx context.Context, round int, s walSide) error {
	d, err := b.server.fresh(ctx, "empty "+s.key, s.build)
	if err != nil {
		return err
	}
	defer d.drop()
	if err := b.walPass(ctx, d, s, s.tasks/10, nil); err != nil {
		return err
	}
	return b.walPass(ctx, d, s, s.tasks, func(metric string, v float64) { b.samples.Add(caseWAL, s.name, metric, round, v) })
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

func (b *bench) walPass(ctx context.Context, d *database, s walSide, n int, add func(string, float64)) error {
	before, err := b.position(ctx)
	if err != nil {
		return err
	}
	if err := s.enqueue(ctx, d, n); err != nil {
		return err
	}
	enqueued, err := b.position(ctx)
	if err != nil {
		return err
	}
	p := measure.NewProgress(n)
	stop, err := s.start(ctx, d.url, p.Done)
	if err != nil {
		p.End()
		return err
	}
	s.side.tasks = n
	_, _, err = b.follow(ctx, p, s.side, d, time.Minute)
	p.End()
	if stopErr := stop(); err != nil || stopErr != nil {
		return fmt.Errorf("work off: %w", firstOf(err, stopErr))
	}
	after, err := b.position(ctx)
	if err != nil || add == nil {
		return err
	}
	tasks := float64(n)
	add(mWAL, (after.bytes-before.bytes)/tasks)
	add(mWALEnqueue, (enqueued.bytes-before.bytes)/tasks)
	add(mWALImages, (after.images-before.images)/tasks)
	var dead float64
	if err := d.QueryRowContext(ctx, deadSQL).Scan(&dead); err != nil {
		return err
	}
	add(mWALDead, dead/tasks)
	if _, err := d.ExecContext(ctx, `VACUUM`); err != nil {
		return err
	}
	vacuumed, err := b.position(ctx)
	add(mWALVacuum, (vacuumed.bytes-after.bytes)/tasks)
	return err
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// enqueuing calls one for each chunk of n tasks: of walChunk, or of one from eight connections.
func enqueuing(ctx context.Context, n int, single bool, call func(ctx context.Context, k int) error) error {
	if !single {
		for ; n > 0; n -= walChunk {
			if err := call(ctx, min(n, walChunk)); err != nil {
				return err
			}
		}
		return nil
	}
	var group sync.WaitGroup
	errs := make([]error, enqueuers)
	for i := range enqueuers {
		group.Go(func() {
			for j := i; j < n && errs[i] == nil; j += enqueuers {
				errs[i] = call(ctx, 1)
			}
		})
	}
	group.Wait()
	return firstOf(errs...)
}

func enqueueOurs(single bool) func(context.Context, *database, int) error {
	return func(ctx context.Context, d *database, n int) error {
		return enqueuing(ctx, n, single, func(ctx context.Context, k int) error {
			tasks := make([]outbox.NewTask, k)
			for i := range tasks {
				tasks[i] = benchTask.New(load{N: 100_000})
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := outbox.EnqueueMany(ctx, tx, tasks)
				return err
			})
		})
	}
}

func enqueueRaw(single bool) func(context.Context, *database, int) error {
	return func(ctx context.Context, d *database, n int) error {
		return enqueuing(ctx, n, single, func(ctx context.Context, k int) error { return raw.Fill(ctx, d.DB, taskType, k, smallPayload) })
	}
}

func enqueueRiver(single bool) func(context.Context, *database, int) error {
	return func(ctx context.Context, d *database, n int) error {
		client, err := river.Open(ctx, d.url, enqueuers)
		if err != nil {
			return err
		}
		defer client.Close()
		return enqueuing(ctx, n, single, func(ctx context.Context, k int) error {
			if k == 1 {
				_, err := client.Insert(ctx, river.Args{N: 100_000}, nil)
				return err
			}
			_, err := client.InsertManyFast(ctx, river.Jobs(k, ""))
			return err
		})
	}
}
