package crashes_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// Processes that run recurring tasks are killed all the time: each iteration takes effect exactly once.
func TestEachIterationTakesEffectOnceThoughRelaysAreKilled(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := relaytest.NewDatabase(t)
	const iterations = 15
	tasks, mostKills := relaytest.Times(2, 6), relaytest.Times(3, 9)
	for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, max_attempts) SELECT $1, '{"n": 0}', 1000 FROM generate_series(1, $2)`, taskType, tasks)
	}
	f := &fleet{DB: db, Program: "recurring", Workers: 4, Restart: true, Hasten: true}
	f.Start(t, 3)
	kills := 0
	relaytest.Eventually(t, 3*time.Minute, "all iterations are done", func() bool {
		// The kills are evenly spread over the effects.
		next := (kills + 1) * 3 * tasks * iterations / (mostKills + 1)
		if alive := f.Processes(); kills < mostKills && len(alive) > 0 && db.Int(t, `SELECT count(*) FROM effect`) > next {
			_ = alive[kills%len(alive)].Kill()
			kills++
		}
		return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	if kills == 0 {
		t.Error("no process was killed: the test shows nothing")
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Errorf("%d dead letters\n%s", n, db.Dump(t))
	}
	// The effect of iteration i has attempt = i, and is written with the payload n = i.
	if got, want := db.Text(t, `SELECT count(*) || ' ' || count(DISTINCT (task_id, attempt)) || ' ' || min(attempt) || ' ' || max(attempt) FROM effect`),
		fmt.Sprint(3*tasks*iterations, 3*tasks*iterations, " 0 ", iterations-1); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("effects, distinct ones, least and greatest iteration: %s, want %s", got, want)
	}
}

// recurring registers handlers of each kind that write one effect in each of 15 iterations. The iteration is also the payload.
func recurring(*sql.DB) *handlers.Registry {
	again := func(task *outbox.Task[relaytest.Payload]) error {
		if task.Payload.N != task.Iterations {
			return handlers.Dead(fmt.Errorf("iteration %d has the payload of %d", task.Iterations, task.Payload.N))
		}
		if task.Iterations == 14 {
			return nil
		}
		return handlers.RunAgainWith(task, time.Millisecond, relaytest.Payload{N: task.Payload.N + 1})
	}
	reg := handlers.New()
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		if err := relaytest.Effect(ctx, tx, task.ID, task.Iterations); err != nil {
			return err
		}
		return again(task)
	})
	handlers.Batch(reg, relaytest.TypeBatch, 5, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		results := handlers.BatchError{}
		for _, task := range tasks {
			if err := relaytest.Effect(ctx, tx, task.ID, task.Iterations); err != nil {
				return err
			}
			results[task.ID] = again(task)
		}
		return results
	})
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error {
			if err := relaytest.Effect(ctx, tx, task.ID, task.Iterations); err != nil {
				return err
			}
			return again(task)
		})
	})
	return reg
}
