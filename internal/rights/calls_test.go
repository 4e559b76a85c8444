package rights_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/history"
	"github.com/txoutbox/outbox/inspect"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type number struct{ N int }

// calls are those of the library. Who may do what in docs/security.md is this table.
func calls() []right {
	inTx := func(name, may string, do func(ctx context.Context, tx *sql.Tx, name string) error) right {
		return right{name, may, false, func(ctx context.Context, g *granted, db *sql.DB) error {
			return rolledBack(ctx, db, func(tx *sql.Tx) error { return do(ctx, tx, g.schema) })
		}}
	}
	// What is written by an INSERT into the table of tasks an operator may write as well, as redrive does.
	const enqueuers, writers = "owner enqueuer worker", "owner enqueuer worker operator"
	enqueue := func(name, may string, opts ...outbox.Option) right {
		return inTx(name, may, func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := outbox.Enqueue(ctx, tx, "A", number{1}, append(slices.Clone(opts), outbox.Schema(in))...)
			return err
		})
	}
	many := func(name, may string, opts ...outbox.Option) right {
		return inTx(name, may, func(ctx context.Context, tx *sql.Tx, in string) error {
			tasks := make([]outbox.NewTask, 5)
			for i := range tasks {
				tasks[i] = outbox.NewTask{Type: "A", Payload: number{i}, Options: []outbox.Option{outbox.Schema(in)}}
			}
			tasks[4].Options = append(tasks[4].Options, opts...)
			_, err := outbox.EnqueueMany(ctx, tx, tasks)
			return err
		})
	}
	all := []outbox.Option{outbox.After(time.Hour), outbox.Priority(1), outbox.MaxAttempts(2), outbox.Timeout(time.Second),
		outbox.Headers(map[string]string{"k": "v"}), outbox.OrderedBy("o"), outbox.SkipFailed()}
	keyed := append(slices.Clone(all), outbox.Unique("new"))
	letters := deadletter.Filter{Type: "A"}
	onDB := func(name, may string, do func(ctx context.Context, db *sql.DB, in string) error) right {
		return right{name, may, true, func(ctx context.Context, g *granted, db *sql.DB) error { return do(ctx, db, g.schema) }}
	}
	const everyone = "owner enqueuer worker viewer operator"
	return []right{
		enqueue("Enqueue", enqueuers),
		enqueue("Enqueue with all options", writers, all...),
		enqueue("Enqueue at a time", writers, outbox.RunAt(time.Now())),
		enqueue("Enqueue with a unique key and all options", enqueuers, keyed...),
		enqueue("Enqueue with a taken key", enqueuers, outbox.Unique("taken"), outbox.OnConflict(outbox.Skip)),
		enqueue("Enqueue with Replace", enqueuers, outbox.Unique("taken"), outbox.OnConflict(outbox.Replace)),
		enqueue("Enqueue with Reschedule", enqueuers, outbox.Unique("taken", outbox.UntilDone()), outbox.OnConflict(outbox.Reschedule), outbox.After(time.Hour)),
		enqueue("Enqueue with UniquePayload", enqueuers, outbox.UniquePayload()),
		enqueue("Enqueue with UniquePayload UntilDone", enqueuers, outbox.UniquePayload(outbox.UntilDone())),
		many("EnqueueMany", writers), many("EnqueueMany with all options", writers, all...), many("EnqueueMany with keys", enqueuers, keyed...),
		inTx("Cancel", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			for id, want := range map[int64]outbox.CancelResult{1001: outbox.Canceled, 1003: outbox.CancelRequested, 9999: outbox.NotFound} {
				if got, err := outbox.Cancel(ctx, tx, id, outbox.Schema(in)); err != nil || got != want {
					return errors.Join(err, errors.New("cancel: "+got.String()))
				}
			}
			return nil
		}),
		inTx("RunNow", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			for id, want := range map[int64]bool{1007: true, 1001: false, 1003: false, 9999: false} {
				if got, err := outbox.RunNow(ctx, tx, id, outbox.Schema(in)); err != nil || got != want {
					return errors.Join(err, fmt.Errorf("task %d: RunNow: %v", id, got))
				}
			}
			return nil
		}),
		inTx("Pause and Resume", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			return errors.Join(outbox.Pause(ctx, tx, "A", outbox.Schema(in)), outbox.Resume(ctx, tx, "A", outbox.Schema(in)))
		}),
		inTx("Stats", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := outbox.Stats(ctx, tx, outbox.Schema(in))
			return err
		}),
		inTx("inspect.Get and inspect.List", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			for id, state := range map[int64]inspect.State{1001: inspect.Ready, 1003: inspect.Leased, 1004: inspect.Dead, 1006: inspect.Finished, 1007: inspect.Scheduled} {
				if got, err := inspect.Get(ctx, tx, id, inspect.Schema(in)); err != nil || got.State != state {
					return errors.Join(err, fmt.Errorf("task %d is %s", id, got.State))
				}
			}
			for _, state := range []inspect.State{inspect.Ready, inspect.Scheduled, inspect.Leased, inspect.Waiting, inspect.Dead, inspect.Finished} {
				page, err := inspect.List(ctx, tx, inspect.Filter{Type: "A", State: state}, "", 1, inspect.Schema(in))
				if err == nil && page.Next != "" {
					_, err = inspect.List(ctx, tx, inspect.Filter{Type: "A", State: state}, page.Next, 1, inspect.Schema(in))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		inTx("inspect.Relays, inspect.Types, inspect.Schedules and inspect.Samples", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err1 := inspect.Relays(ctx, tx, inspect.Schema(in))
			_, err2 := inspect.Types(ctx, tx, inspect.Schema(in))
			_, err3 := inspect.Schedules(ctx, tx, inspect.Schema(in))
			_, err4 := inspect.Samples(ctx, tx, "", time.Hour, inspect.Schema(in))
			return errors.Join(err1, err2, err3, err4)
		}),
		inTx("inspect.GetSecrets of a dead letter", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := inspect.GetSecrets(ctx, tx, 1004, inspect.Schema(in))
			return err
		}),
		inTx("inspect.GetSecrets of a task that waits", "owner worker", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := inspect.GetSecrets(ctx, tx, 1001, inspect.Schema(in))
			return err
		}),
		inTx("inspect.GetSecrets of a finished task", "owner worker", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := inspect.GetSecrets(ctx, tx, 1006, inspect.Schema(in))
			return err
		}),
		inTx("audit.Write", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := audit.Write(ctx, tx, audit.Entry{Actor: "ada", Tool: "test", Action: "try"}, audit.Schema(in))
			return err
		}),
		inTx("audit.List", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := audit.List(ctx, tx, 0, 0, audit.Schema(in))
			return err
		}),
		inTx("deadletter.List", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			page, err := deadletter.List(ctx, tx, letters, deadletter.Cursor{}, 1, deadletter.Schema(in))
			if err == nil {
				_, err = deadletter.List(ctx, tx, deadletter.Filter{Error: "%x%", Reason: deadletter.Handler}, page[0].Cursor(), 0, deadletter.Schema(in))
			}
			return err
		}),
		inTx("deadletter.Count", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.Count(ctx, tx, letters, deadletter.Schema(in))
			return err
		}),
		inTx("deadletter.ListPage", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, p, err := deadletter.ListPage(ctx, tx, deadletter.Filter{Error: "%x%", Reason: deadletter.Handler}, deadletter.Cursor{}, 1, 0, deadletter.Schema(in))
			if err == nil {
				_, err = deadletter.CountPage(ctx, tx, letters, p.Next, 0, deadletter.Schema(in))
			}
			return err
		}),
		inTx("deadletter.Get", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.Get(ctx, tx, 1004, deadletter.Schema(in))
			return err
		}),
		inTx("Redrive", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.Redrive(ctx, tx, []int64{1004, 1005}, deadletter.Schema(in))
			return err
		}),
		onDB("RedriveMany", "owner worker operator", func(ctx context.Context, db *sql.DB, in string) error {
			n, err := deadletter.RedriveMany(ctx, db, letters, 0, deadletter.Schema(in))
			if err == nil && n != 2 {
				return errors.New("RedriveMany did not move both")
			}
			return err
		}),
		inTx("RedrivePage", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.RedrivePage(ctx, tx, deadletter.Filter{Error: "%"}, deadletter.Cursor{}, 1, deadletter.Schema(in))
			return err
		}),
		inTx("PurgePage", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.PurgePage(ctx, tx, deadletter.Filter{Error: "%"}, deadletter.Cursor{}, 1, deadletter.Schema(in))
			return err
		}),
		inTx("Purge", "owner worker operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := deadletter.Purge(ctx, tx, letters, 1, deadletter.Schema(in))
			return err
		}),
		onDB("PurgeMany", "owner worker operator", func(ctx context.Context, db *sql.DB, in string) error {
			_, err := deadletter.PurgeMany(ctx, db, letters, 0, deadletter.Schema(in))
			return err
		}),
		inTx("history.List", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := history.List(ctx, tx, "A", 0, 0, history.Schema(in))
			return err
		}),
		inTx("history.Get", "owner worker", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := history.Get(ctx, tx, 1006, history.Schema(in))
			return err
		}),
		onDB("HandBack", "owner worker operator", func(ctx context.Context, db *sql.DB, in string) error {
			n, err := relay.HandBack(ctx, db, "00000000-0000-0000-0000-000000000001", in)
			if err == nil && n != 1 {
				return errors.New("HandBack found no task")
			}
			return err
		}),
		onDB("PauseSchedule and ResumeSchedule", "owner worker operator", func(ctx context.Context, db *sql.DB, in string) error {
			return errors.Join(relay.PauseSchedule(ctx, db, "nightly", in), relay.ResumeSchedule(ctx, db, "nightly", in))
		}),
		onDB("RemoveSchedule", "owner worker operator", func(ctx context.Context, db *sql.DB, in string) error {
			return relay.RemoveSchedule(ctx, db, "nightly", in)
		}),
		{"RunOnce", "owner worker", true, func(ctx context.Context, g *granted, db *sql.DB) error {
			if _, err := g.admin.ExecContext(ctx, g.sql(`TRUNCATE outbox.task, outbox.dead_task`)); err != nil {
				return err
			}
			return runOnce(ctx, db, g.schema)
		}},
		onDB("Reindex", "owner", func(ctx context.Context, db *sql.DB, in string) error {
			_, err := relay.Reindex(ctx, db, in)
			return err
		}),
		onDB("Check", everyone, func(ctx context.Context, db *sql.DB, in string) error { return schema.Check(ctx, db, in) }),
		onDB("Migrate with nothing to do", everyone, func(ctx context.Context, db *sql.DB, in string) error {
			return schema.Migrate(ctx, db, schema.Schema(in))
		}),
		onDB("GrantRoles", "owner", func(ctx context.Context, db *sql.DB, in string) error {
			return schema.GrantRoles(ctx, db, schema.Schema(in))
		}),
	}
}

// runOnce enqueues tasks of each kind, which succeed, fail, come again and die, and runs them.
func runOnce(ctx context.Context, db *sql.DB, in string) error {
	r, err := relay.New(db, registry(in), relay.Config{Schema: in, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), DeadRetention: time.Hour,
		Schedules: relay.Schedules{{Name: "often", Timing: relay.Every(time.Minute), Task: outbox.NewTask{Type: "TX", Payload: number{1}}}}})
	if err != nil {
		return err
	}
	if err := r.RunOnce(ctx); err != nil {
		return err
	}
	err = outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for i, taskType := range []string{"TX", "BATCH", "LEASED", "RUNS_AGAIN", "FAILS", "DIES", "LIMITED", "DIES"} {
			for _, opts := range [][]outbox.Option{nil, {outbox.OrderedBy("o")}, {outbox.Unique("u")}, {outbox.Headers(map[string]string{"a": "b"})}} {
				if _, err := outbox.Enqueue(ctx, tx, taskType, number{i}, append(opts, outbox.Schema(in))...); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.RunOnce(ctx)
}

func registry(in string) *handlers.Registry {
	reg := handlers.New()
	one, two := handlers.MaxAttempts(1), handlers.MaxRunningTotal(2)
	handlers.Tx(reg, outbox.NewTaskType[number]("TX"), func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[number]) error {
		_, err := outbox.Enqueue(ctx, tx, "BATCH", number{1}, outbox.Schema(in), outbox.UniquePayload())
		return err
	}, handlers.Keep(time.Hour))
	handlers.Batch(reg, outbox.NewTaskType[number]("BATCH"), 3, func(context.Context, outbox.Tx, []*outbox.Task[number]) error { return nil }, handlers.Keep(time.Hour))
	handlers.Leased(reg, outbox.NewTaskType[number]("LEASED"), func(ctx context.Context, task *outbox.Task[number]) error {
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		return task.Complete(ctx, func(*sql.Tx) error { return nil })
	}, handlers.Keep(time.Hour))
	handlers.Leased(reg, outbox.NewTaskType[number]("RUNS_AGAIN"), func(_ context.Context, task *outbox.Task[number]) error {
		if task.Iterations < 2 {
			return handlers.RunAgain(0)
		}
		return nil
	})
	handlers.Tx(reg, outbox.NewTaskType[number]("FAILS"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[number]) error {
		return handlers.RetryAfter(time.Hour, errors.New("not now"))
	})
	handlers.Tx(reg, outbox.NewTaskType[number]("DIES"), func(context.Context, *sql.Tx, *outbox.Task[number]) error { return errors.New("no") }, one)
	handlers.Leased(reg, outbox.NewTaskType[number]("LIMITED"), func(context.Context, *outbox.Task[number]) error { return errors.New("no") }, one, two, handlers.Rate(1000, time.Second))
	return reg
}
