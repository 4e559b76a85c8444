package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// The kinds of handler.
const (
	kindTx     = "Tx"
	kindBatch  = "Batch"
	kindLeased = "Leased"
)

// relaySettings are a relay and its handler. They travel to other processes as JSON.
type relaySettings struct {
	Kind    string
	Workers int
	Batch   int
	Group   int           // of Tx: GroupCommit
	Within  time.Duration // of Group
	Insert  bool          // one row into effect for each task, in the task's transaction; Leased by Complete
	Type    string        // default taskType
	Listen  bool
	Poll    time.Duration
	Pause   time.Duration // in each call of the handler
}

const insertEffectSQL = `/* bench: effect */
INSERT INTO effect (task_id) VALUES ($1)`

const insertEffectsSQL = `/* bench: effects */
INSERT INTO effect (task_id) SELECT unnest($1::bigint[])`

// startRelay runs a relay in this process until stop. handle is told of each call of a handler and
// its first task's payload.
func startRelay(ctx context.Context, url string, set relaySettings, handle func(n int, first load),
	observers ...relay.Observer) (stop func() error, err error) {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return nil, err
	}
	config := relay.Config{Workers: set.Workers, PollInterval: set.Poll, Observers: observers}
	if set.Listen {
		config.ListenDSN = url
	}
	var effect *sql.Stmt
	if set.Insert {
		if effect, err = db.PrepareContext(ctx, insertEffectSQL); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return runRelay(ctx, db, registry(set, effect, handle), config)
}

// runRelay runs a relay until stop, which closes its pool.
func runRelay(ctx context.Context, db *sql.DB, reg *handlers.Registry, config relay.Config) (
	stop func() error, err error) {
	config.DrainTimeout, config.Logger = 5*time.Second, slog.New(slog.DiscardHandler)
	r, err := relay.New(db, reg, config)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, db.Close())
	}, nil
}

// registry has the handler. effect inserts a row; it is nil if set does not.
func registry(set relaySettings, effect *sql.Stmt, handle func(int, load)) *handlers.Registry {
	name := set.Type
	if name == "" {
		name = taskType
	}
	insert := func(ctx context.Context, tx *sql.Tx, task *outbox.Task[load]) error {
		if !set.Insert {
			return nil
		}
		_, err := tx.StmtContext(ctx, effect).ExecContext(ctx, task.ID)
		return err
	}
	reg, t := handlers.New(), outbox.NewTaskType[load](name)
	switch set.Kind {
	case kindTx:
		handlers.Tx(reg, t, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[load]) error {
			handle(1, task.Payload)
			pause(ctx, set.Pause)
			return insert(ctx, tx, task)
		}, handlers.GroupCommit(set.Group, set.Within))
	case kindBatch:
		handlers.Batch(reg, t, set.Batch, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[load]) error {
			handle(len(tasks), tasks[0].Payload)
			pause(ctx, set.Pause)
			if !set.Insert {
				return nil
			}
			ids := make([]int64, len(tasks))
			for i, task := range tasks {
				ids[i] = task.ID
			}
			_, err := tx.ExecContext(ctx, insertEffectsSQL, pq.Array(ids))
			return err
		})
	case kindLeased:
		handlers.Leased(reg, t, func(ctx context.Context, task *outbox.Task[load]) error {
			handle(1, task.Payload)
			pause(ctx, set.Pause)
			if !set.Insert {
				return nil
			}
			return task.Complete(ctx, func(tx *sql.Tx) error { return insert(ctx, tx, task) })
		})
	default:
		panic("bench: kind " + set.Kind)
	}
	return reg
}

const effectTableSQL = `/* bench: set up */
CREATE TABLE effect (
  effect_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task_id bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT now())`

const fillOursSQL = `/* bench: fill */
INSERT INTO outbox.task (task_type, payload) SELECT $1, $2::jsonb FROM generate_series(1, $3::int)`

// fillChunk bounds a statement: its triggers keep all of its rows until its end.
const fillChunk = 250_000

// A bare table has all that the task table has but its triggers. LIKE leaves out the storage
// parameters.
const bareTableSQL = `/* bench: a bare table */
CREATE TABLE bare (LIKE outbox.task INCLUDING ALL);
DO $$ DECLARE
  options text := (SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = 'outbox.task'::regclass);
BEGIN
  IF options <> '' THEN
    EXECUTE 'ALTER TABLE bare SET (' || options || ')';
  END IF;
END $$`

// buildOurs migrates, makes a bare table beside the outbox's, and enqueues tasks of a type.
func buildOurs(taskType string, tasks int) func(context.Context, *database) error {
	return func(ctx context.Context, d *database) error {
		if err := schema.Migrate(ctx, d.DB); err != nil {
			return err
		}
		if err := d.exec(ctx, effectTableSQL, bareTableSQL); err != nil {
			return err
		}
		for n := tasks; n > 0; n -= fillChunk {
			if _, err := d.ExecContext(ctx, fillOursSQL, taskType, payload, min(n, fillChunk)); err != nil {
				return err
			}
		}
		return nil
	}
}

// leftOurs is how many tasks are not done, by the counters, which are exact.
func leftOurs(ctx context.Context, db *sql.DB) (n int, err error) {
	stats, err := outbox.Stats(ctx, db)
	for _, s := range stats {
		n += int(s.Ready + s.Scheduled + s.Retrying + s.Leased + s.Waiting)
	}
	return n, err
}
