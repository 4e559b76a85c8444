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

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
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
	letters := admin.Filter{Type: "A"}
	onDB := func(name, may string, do func(ctx context.Context, db *sql.DB, in string) error) right {
		return right{name, may, true, func(ctx context.Context, g *granted, db *sql.DB) error { return do(ctx, db, g.schema) }}
	}
	const everyone = "owner enqueuer worker viewer operator"
	client := func(db *sql.DB, in string) *admin.Client {
		c, err := admin.New(db, admin.Options{Schema: in, Actor: "ada", Tool: "test"})
		if err != nil {
			panic(err)
		}
		return c
	}
	adminIn := func(name, may string, do func(ctx context.Context, c *admin.Client) error) right {
		return right{name, may, false, func(ctx context.Context, g *granted, db *sql.DB) error {
			return rolledBack(ctx, db, func(tx *sql.Tx) error { return do(ctx, client(db, g.schema).In(tx)) })
		}}
	}
	adminOn := func(name, may string, do func(ctx context.Context, c *admin.Client) error) right {
		return right{name, may, true, func(ctx context.Context, g *granted, db *sql.DB) error { return do(ctx, client(db, g.schema)) }}
	}
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
		inTx("Stats", "owner worker viewer operator", func(ctx context.Context, tx *sql.Tx, in string) error {
			_, err := outbox.Stats(ctx, tx, outbox.Schema(in))
			return err
		}),
		adminIn("PauseType and ResumeType", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			return errors.Join(c.PauseType(ctx, "A"), c.ResumeType(ctx, "A"))
		}),
		adminIn("Client.Cancel and Client.RunNow", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, _, err1 := c.Cancel(ctx, 1001, 1003, 9999)
			_, err2 := c.RunNow(ctx, 1007, 9999)
			return errors.Join(err1, err2)
		}),
		adminIn("Task and Tasks", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			for id, state := range map[int64]admin.State{1001: admin.Ready, 1003: admin.Leased, 1004: admin.Dead, 1006: admin.Finished, 1007: admin.Scheduled} {
				if got, err := c.Task(ctx, id); err != nil || got.State != state {
					return errors.Join(err, fmt.Errorf("task %d is %s", id, got.State))
				}
			}
			for _, state := range []admin.State{admin.Ready, admin.Scheduled, admin.Leased, admin.Waiting, admin.Dead, admin.Finished} {
				_, next, err := c.Tasks(ctx, "A", state, admin.Page{Limit: 1})
				if err == nil && next != "" {
					_, _, err = c.Tasks(ctx, "A", state, admin.Page{After: next, Limit: 1})
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		adminIn("Relays, Types, Schedules and Samples", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, err1 := c.Relays(ctx)
			_, err2 := c.Types(ctx)
			_, err3 := c.Schedules(ctx)
			_, err4 := c.Samples(ctx, "", time.Hour)
			return errors.Join(err1, err2, err3, err4)
		}),
		adminIn("Origin", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Origin(ctx)
			return err
		}),
		adminIn("Adopt", "owner operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Adopt(ctx, admin.AdoptOptions{KeepID: true, Environment: "staging"})
			return err
		}),
		adminIn("Secrets of a dead letter", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Secrets(ctx, 1004)
			return err
		}),
		adminIn("Secrets of a task that waits", "owner worker", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Secrets(ctx, 1001)
			return err
		}),
		adminIn("Secrets of a finished task", "owner worker", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Secrets(ctx, 1006)
			return err
		}),
		adminIn("WriteAudit", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.WriteAudit(ctx, admin.Entry{Action: "try"})
			return err
		}),
		adminIn("TaskAudit", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.TaskAudit(ctx, 1)
			return err
		}),
		adminIn("Audit", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.Audit(ctx, admin.Page{})
			return err
		}),
		adminIn("DeadLetters and CountDeadLetters", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, next, err1 := c.DeadLetters(ctx, letters, admin.Page{Limit: 1})
			searched := admin.Filter{Error: "x", Reason: admin.ReasonHandler}
			_, _, err2 := c.DeadLetters(ctx, searched, admin.Page{After: next, Look: 1})
			_, _, err3 := c.CountDeadLetters(ctx, letters, admin.Page{})
			_, _, err4 := c.CountDeadLetters(ctx, searched, admin.Page{After: next, Look: 1})
			return errors.Join(err1, err2, err3, err4)
		}),
		adminIn("Redrive", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, _, err1 := c.Redrive(ctx, admin.Filter{IDs: []int64{1004}}, admin.Page{})
			_, _, err2 := c.Redrive(ctx, admin.Filter{Error: "o", Type: "A"}, admin.Page{Limit: 1, Look: 1})
			_, _, err3 := c.RedriveWithoutKey(ctx, admin.Filter{IDs: []int64{1005}}, admin.Page{})
			return errors.Join(err1, err2, err3)
		}),
		adminIn("Purge", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.Purge(ctx, admin.Filter{Error: "o", Type: "A"}, admin.Page{Limit: 1, Look: 1})
			return err
		}),
		adminOn("EveryPage of Redrive", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			n, _, err := c.EveryPage(ctx, c.Redrive, letters, 0)
			if err == nil && n != 2 {
				return errors.New("EveryPage did not move both")
			}
			return err
		}),
		adminOn("EveryPage of Purge", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			_, _, err := c.EveryPage(ctx, c.Purge, letters, 0)
			return err
		}),
		adminOn("HandBack", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			n, err := c.HandBack(ctx, "00000000-0000-0000-0000-000000000001")
			if err == nil && n != 1 {
				return errors.New("HandBack found no task")
			}
			return err
		}),
		adminOn("PauseSchedule and ResumeSchedule", "owner worker operator", func(ctx context.Context, c *admin.Client) error {
			return errors.Join(c.PauseSchedule(ctx, "nightly"), c.ResumeSchedule(ctx, "nightly"))
		}),
		adminOn("RemoveSchedule", "owner worker operator", func(ctx context.Context, c *admin.Client) error { return c.RemoveSchedule(ctx, "nightly") }),
		{"RunOnce", "owner worker", true, func(ctx context.Context, g *granted, db *sql.DB) error {
			if _, err := g.admin.ExecContext(ctx, g.sql(`TRUNCATE outbox.task, outbox.dead_task`)); err != nil {
				return err
			}
			return runOnce(ctx, db, g.schema)
		}},
		adminOn("Defects", "owner worker", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Defects(ctx, admin.RepairOptions{})
			return err
		}),
		adminOn("Defects of sequences and counts", "owner worker viewer operator", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Defects(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectSequences, admin.DefectCounts}})
			return err
		}),
		{"Repair of sequences", "owner", true, func(ctx context.Context, g *granted, db *sql.DB) error {
			if _, err := g.admin.ExecContext(ctx, g.sql(`SELECT setval('outbox.task_task_id_seq', 1)`)); err != nil {
				return err
			}
			_, err := client(db, g.schema).Repair(ctx, admin.RepairOptions{})
			return err
		}},
		adminOn("Repair of the rest", "owner worker", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Repair(ctx, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectCounts, admin.DefectUniqueKeys, admin.DefectOrderingKeys, admin.DefectLeases, admin.DefectLeftovers}})
			return err
		}),
		adminOn("Reindex", "owner", func(ctx context.Context, c *admin.Client) error {
			_, err := c.Reindex(ctx)
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
		if task.Attempt > 1 {
			return handlers.RetryAfter(time.Hour, errors.New("not now"))
		}
		return errors.New("not now")
	}, handlers.Backoff(func() retry.Backoff { return retry.NewConstant(time.Millisecond) }))
	handlers.Tx(reg, outbox.NewTaskType[number]("DIES"), func(context.Context, *sql.Tx, *outbox.Task[number]) error { return errors.New("no") }, one)
	handlers.Leased(reg, outbox.NewTaskType[number]("LIMITED"), func(context.Context, *outbox.Task[number]) error { return errors.New("no") }, one, two, handlers.Rate(1000, time.Second))
	return reg
}
