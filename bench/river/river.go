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

// Client is a client that inserts, or works.
type Client struct {
	*upstream.Client[pgx.Tx]
	Pool *pgxpool.Pool
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

// Open connects a client that only inserts; Close ends it.
func Open(ctx context.Context, url string, maxConns int) (*Client, error) {
	pool, err := connect(ctx, url, maxConns)
	if err != nil {
		return nil, err
	}
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &Client{client, pool}, nil
}

// InsertOne inserts job n in a transaction.
func (c *Client) InsertOne(ctx context.Context, n int) error {
	return pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
		_, err := c.InsertTx(ctx, tx, Args{N: n}, nil)
		return err
	})
}

// InsertMany inserts n jobs by COPY.
func (c *Client) InsertMany(ctx context.Context, n int) error {
	jobs := make([]upstream.InsertManyParams, n)
	for i := range jobs {
		jobs[i].Args = Args{N: 100_000 + i}
	}
	_, err := c.InsertManyFast(ctx, jobs)
	return err
}

// Close gives the connections back.
func (c *Client) Close() { c.Pool.Close() }

func connect(ctx context.Context, url string, maxConns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("river: the URL is not one of pgx")
	}
	if maxConns > 0 {
		config.MaxConns = int32(maxConns)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// Setup migrates the database.
func Setup(ctx context.Context, url string) error {
	pool, err := connect(ctx, url, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("river: migrate: %w", err)
	}
	return nil
}

// Fill inserts n jobs by InsertManyFast, 5,000 at a time.
func Fill(ctx context.Context, url string, n int) error {
	client, err := Open(ctx, url, 0)
	if err != nil {
		return err
	}
	defer client.Close()
	for n > 0 {
		k := min(n, 5000)
		if err := client.InsertMany(ctx, k); err != nil {
			return fmt.Errorf("river: fill: %w", err)
		}
		n -= k
	}
	return nil
}

// LeftSQL counts the jobs that are not done.
const LeftSQL = `/* bench: what is left */
SELECT count(*) FROM river_job WHERE state <> 'completed'`

// Start starts a client that works; done is told of finished jobs.
func Start(ctx context.Context, url string, set Settings, done func(n int)) (stop func() error, err error) {
	pool, err := connect(ctx, url, set.MaxConns)
	if err != nil {
		return nil, err
	}
	workers := upstream.NewWorkers()
	upstream.AddWorker(workers, &worker{set: set, pool: pool, done: done})
	client, err := upstream.NewClient(riverpgxv5.New(pool), &upstream.Config{
		FetchCooldown: set.Cooldown, FetchPollInterval: set.Poll,
		Queues:  map[string]upstream.QueueConfig{upstream.QueueDefault: {MaxWorkers: set.Workers}},
		Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = client.Start(ctx)
	}
	if err != nil {
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
