// Package river runs River, on pgx, for comparison.
package river

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	upstream "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Args is the job: what the tasks of the other sides have as payload.
type Args struct {
	N int `json:"n"`
}

// Kind is River's name of the job type.
func (Args) Kind() string { return "bench" }

// Settings are one turn's work. Zero durations are River's defaults.
type Settings struct {
	Workers  int
	Cooldown time.Duration
	Poll     time.Duration
	MaxConns int  // of the pool; 0: pgx's default
	Insert   bool // a row into effect and JobCompleteTx, in one transaction
	// Handle, if set, is called with each job, in place of the count.
	Handle func(Args) `json:"-"`
}

// Bench are the settings of River's own benchmark.
func Bench() Settings {
	return Settings{Workers: 2000, Cooldown: 2 * time.Millisecond, Poll: 20 * time.Millisecond}
}

type worker struct {
	upstream.WorkerDefaults[Args]
	set  Settings
	pool *pgxpool.Pool
	done func(n int)
}

const effectSQL = `/* bench: effect */
INSERT INTO effect (task_id) VALUES ($1)`

// Work is one job.
func (w *worker) Work(ctx context.Context, job *upstream.Job[Args]) error {
	switch {
	case w.set.Handle != nil:
		w.set.Handle(job.Args)
		return nil
	case !w.set.Insert:
		w.done(1)
		return nil
	}
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, effectSQL, job.ID); err != nil {
			return err
		}
		_, err := upstream.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.done(1)
	}
	return err
}

// Client is a client that only inserts.
type Client struct {
	river *upstream.Client[pgx.Tx]
	pool  *pgxpool.Pool
}

// Open connects a client; Close ends it.
func Open(ctx context.Context, url string, maxConns int) (*Client, error) {
	insertOnly := func(*pgxpool.Pool) *upstream.Config { return &upstream.Config{} }
	pool, client, err := connect(ctx, url, maxConns, insertOnly)
	return &Client{client, pool}, err
}

// Close gives the connections back.
func (c *Client) Close() { c.pool.Close() }

// InsertOne inserts job n in a transaction.
func (c *Client) InsertOne(ctx context.Context, n int) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		_, err := c.river.InsertTx(ctx, tx, Args{N: n}, nil)
		return err
	})
}

// InsertMany inserts n jobs by COPY.
func (c *Client) InsertMany(ctx context.Context, n int) error {
	jobs := make([]upstream.InsertManyParams, n)
	for i := range jobs {
		jobs[i].Args = Args{N: 100_000 + i}
	}
	_, err := c.river.InsertManyFast(ctx, jobs)
	return err
}

// connect has a pool and a client on it; maxConns 0 is pgx's default.
func connect(ctx context.Context, url string, maxConns int,
	configOf func(*pgxpool.Pool) *upstream.Config) (
	*pgxpool.Pool, *upstream.Client[pgx.Tx], error) {
	poolConfig, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, errors.New("river: the URL is not one of pgx")
	}
	if maxConns > 0 {
		poolConfig.MaxConns = int32(maxConns)
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, nil, err
	}
	config := configOf(pool)
	config.Logger = slog.New(slog.DiscardHandler)
	client, err := upstream.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		pool.Close()
	}
	return pool, client, err
}

// Build migrates the database, and inserts n jobs, 5,000 at a time.
func Build(ctx context.Context, url string, n int) error {
	client, err := Open(ctx, url, 0)
	if err != nil {
		return err
	}
	defer client.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(client.pool),
		&rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("river: migrate: %w", err)
	}
	for ; n > 0; n -= 5000 {
		if err := client.InsertMany(ctx, min(n, 5000)); err != nil {
			return fmt.Errorf("river: fill: %w", err)
		}
	}
	return nil
}

// LeftSQL counts the jobs that are not done.
const LeftSQL = `/* bench: what is left */
SELECT count(*) FROM river_job WHERE state <> 'completed'`

// Start starts a client that works; done is told of finished jobs.
func Start(ctx context.Context, url string, set Settings, done func(n int)) (stop func() error, err error) {
	pool, client, err := connect(ctx, url, set.MaxConns, func(pool *pgxpool.Pool) *upstream.Config {
		workers := upstream.NewWorkers()
		upstream.AddWorker(workers, &worker{set: set, pool: pool, done: done})
		return &upstream.Config{
			FetchCooldown: set.Cooldown, FetchPollInterval: set.Poll, Workers: workers,
			Queues: map[string]upstream.QueueConfig{upstream.QueueDefault: {MaxWorkers: set.Workers}},
		}
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		defer pool.Close()
		return client.StopAndCancel(ctx)
	}, nil
}
