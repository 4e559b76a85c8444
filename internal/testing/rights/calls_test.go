package rights_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type number struct{ N int }

// call is the try of a right by a role: in a transaction, which tx and client are of and which is
// rolled back, or on the pool.
type call struct {
	ctx    context.Context
	g      *granted
	db     *sql.DB
	tx     *sql.Tx // nil on the pool
	client *admin.Client
	in     outbox.SchemaOption
}

func (r right) try(ctx context.Context, g *granted, db *sql.DB) error {
	client, err := admin.New(db, admin.Config{Schema: g.schema, Actor: "ada", Tool: "test"})
	if err != nil {
		return err
	}
	c := call{ctx: ctx, g: g, db: db, client: client, in: outbox.Schema(g.schema)}
	if r.commits {
		return r.do(c)
	}
	if c.tx, err = db.BeginTx(ctx, nil); err != nil {
		return err
	}
	defer func() { _ = c.tx.Rollback() }()
	c.client = client.In(c.tx)
	return r.do(c)
}

// tails looks until the tail listens. Any role may do that; it asks the relays by the role of its pool.
func tails(c call) error {
	ctx, stop := context.WithCancel(c.ctx)
	defer stop()
	return c.client.Tail(ctx, c.g.url, admin.TailFilter{}, func(admin.TailEvent) error { stop(); return nil })
}

// last is the error that a call has returned behind its other results.
func last(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

const (
	everyone  = "owner enqueuer worker viewer operator"
	enqueuers = "owner enqueuer worker"
	viewers   = "owner worker viewer operator"
	operators = "owner worker operator"
	workers   = "owner worker"
)

// calls are those of the library. The right to each in docs/security.md is this table.
func calls() []right {
	enqueue := func(name, may string, opts ...outbox.Option) right {
		return right{name, may, false, func(c call) error {
			return last(outbox.Enqueue(c.ctx, c.tx, "A", number{1}, append(slices.Clone(opts), c.in)...))
		}}
	}
	many := func(name, may string, opts ...outbox.Option) right {
		return right{name, may, false, func(c call) error {
			tasks := make([]outbox.TaskSpec, 5)
			for i := range tasks {
				tasks[i] = outbox.TaskSpec{Type: "A", Payload: number{i}, Options: []outbox.Option{c.in}}
			}
			tasks[4].Options = append(tasks[4].Options, opts...)
			return last(outbox.EnqueueMany(c.ctx, c.tx, tasks))
		}}
	}
	all := []outbox.Option{outbox.After(time.Hour), outbox.Priority(1), outbox.MaxAttempts(2), outbox.Timeout(time.Second),
		outbox.Headers(map[string]string{"k": "v"}), outbox.OrderedBy("o"), outbox.SkipFailed()}
	keyed := append(slices.Clone(all), outbox.Unique("new"))
	reschedule := []outbox.Option{outbox.Unique("taken", outbox.UntilDone()), outbox.OnConflict(outbox.ConflictReschedule),
		outbox.After(time.Hour)}
	adopt := admin.AdoptOptions{KeepID: true, Environment: "staging"}
	dead := admin.StateDead
	letters, searched := admin.Filter{State: dead, Type: "A"}, admin.Filter{State: dead, Error: "o", Type: "A"}
	due, wait := admin.Filter{IDs: []int64{1007, 9999}}, admin.Filter{IDs: []int64{1001}}
	one, two := admin.Filter{IDs: []int64{1004}}, admin.Filter{IDs: []int64{1005}}
	counts := admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectSequences, admin.DefectCounts}}
	rest := admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectCounts, admin.DefectUniqueKeys,
		admin.DefectOrderingKeys, admin.DefectGroupKeys,
		admin.DefectLeases, admin.DefectLeftovers}}
	tried := admin.TaskQuery{Filter: searched, MaxScan: 1}
	return []right{
		enqueue("Enqueue", enqueuers),
		enqueue("Enqueue with all options", enqueuers, all...),
		enqueue("Enqueue at a time", enqueuers, outbox.RunAt(time.Now())),
		enqueue("Enqueue with a unique key and all options", enqueuers, keyed...),
		enqueue("Enqueue with a taken key", enqueuers, outbox.Unique("taken"), outbox.OnConflict(outbox.ConflictSkip)),
		enqueue("Enqueue with Replace", enqueuers, outbox.Unique("taken"), outbox.OnConflict(outbox.ConflictReplace)),
		enqueue("Enqueue with Reschedule", enqueuers, reschedule...),
		enqueue("Enqueue with UniquePayload", enqueuers, outbox.UniquePayload()),
		enqueue("Enqueue with UniquePayload UntilDone", enqueuers, outbox.UniquePayload(outbox.UntilDone())),
		many("EnqueueMany", enqueuers),
		many("EnqueueMany with all options", enqueuers, all...),
		many("EnqueueMany with keys", enqueuers, keyed...),
		{"Cancel", operators, false, cancels},
		{"RunNow", operators, false, runsNow},
		{"Stats", viewers, false, func(c call) error { return last(outbox.Stats(c.ctx, c.tx, c.in)) }},
		{"PauseType and ResumeType", operators, false, func(c call) error {
			return errors.Join(c.client.PauseType(c.ctx, "A"), c.client.ResumeType(c.ctx, "A"))
		}},
		{"Client.Cancel", operators, false, func(c call) error {
			return last(c.client.Cancel(c.ctx, admin.Filter{IDs: []int64{1001, 1003, 9999}}, admin.Bulk{}))
		}},
		{"Client.RunNow", operators, false, func(c call) error {
			return errors.Join(last(c.client.RunNow(c.ctx, due, admin.Bulk{})),
				last(c.client.RunNow(c.ctx, admin.Filter{Type: "A", State: admin.StateRetrying}, admin.Bulk{})))
		}},
		{"Reschedule", operators, false, func(c call) error {
			r, err := c.client.Reschedule(c.ctx, admin.Filter{Type: "A"}, time.Now().Add(time.Hour), admin.Bulk{})
			return errors.Join(err, want(len(r.IDs) > 0, true, err))
		}},
		{"SetPriority", operators, false, func(c call) error {
			r, err := c.client.SetPriority(c.ctx, wait, 7, admin.Bulk{})
			return errors.Join(err, want(len(r.IDs), 1, err))
		}},
		{"Retype", operators, false, func(c call) error {
			r, err := c.client.Retype(c.ctx, admin.Filter{Type: "A"}, "B", admin.Bulk{})
			return errors.Join(err, want(len(r.IDs) > 0, true, err))
		}},
		{"SetPayload", operators, false, func(c call) error { return c.client.SetPayload(c.ctx, 1001, 1) }},
		{"SetPayload of a dead letter", operators, false, func(c call) error { return c.client.SetPayload(c.ctx, 1004, 1) }},
		{"dead letters by their key and payload", operators, false, func(c call) error {
			return last(c.client.Tasks(c.ctx, admin.TaskQuery{Filter: admin.Filter{State: dead, UniqueKey: "k",
				OrderingKey: "k", GroupKey: "k", Payload: json.RawMessage(`{"secret": 1}`)}}))
		}},
		{"waiting tasks by their key", workers, false, func(c call) error {
			return last(c.client.Count(c.ctx, admin.TaskQuery{Filter: admin.Filter{State: admin.StateReady, UniqueKey: "k"}}))
		}},
		{"waiting tasks by their payload", workers, false, func(c call) error {
			return last(c.client.Cancel(c.ctx, admin.Filter{Payload: json.RawMessage(`{"secret": 1}`)}, admin.Bulk{}))
		}},
		{"Task and Tasks", viewers, false, readsTasks},
		{"Relays", viewers, false, func(c call) error { return last(c.client.Relays(c.ctx)) }},
		{"Types", viewers, false, func(c call) error { return last(c.client.Types(c.ctx)) }},
		{"Schedules", viewers, false, func(c call) error { return last(c.client.Schedules(c.ctx)) }},
		{"Why", viewers, false, func(c call) error {
			why, err := c.client.Why(c.ctx, 1001)
			if err == nil && why.Causes[0].Kind == admin.CauseUnknown {
				return errors.New(why.Causes[0].Text)
			}
			return err
		}},
		{"Samples", viewers, false, func(c call) error { return last(c.client.Samples(c.ctx, admin.SampleQuery{})) }},
		{"Origin", viewers, false, func(c call) error { return last(c.client.Origin(c.ctx)) }},
		{"Adopt", "owner operator", false, func(c call) error { return last(c.client.Adopt(c.ctx, adopt)) }},
		{"Payload of a dead letter", operators, false, func(c call) error { return last(c.client.Payload(c.ctx, 1004)) }},
		{"Payload of a task that waits", workers, false, func(c call) error { return last(c.client.Payload(c.ctx, 1001)) }},
		{"Payload of a finished task", workers, false, func(c call) error { return last(c.client.Payload(c.ctx, 1006)) }},
		{"WriteAudit", operators, false, func(c call) error {
			return last(c.client.WriteAudit(c.ctx, admin.AuditEntry{Action: "try"}))
		}},
		{"Audit", viewers, false, func(c call) error {
			return errors.Join(last(c.client.Audit(c.ctx, admin.AuditQuery{TaskID: 1})),
				last(c.client.Audit(c.ctx, admin.AuditQuery{})))
		}},
		{"DeadLetters", viewers, false, func(c call) error {
			page, err := c.client.Tasks(c.ctx, admin.TaskQuery{Filter: letters, Limit: 1})
			next := tried
			next.After = page.Next
			return errors.Join(err, last(c.client.Tasks(c.ctx, next)))
		}},
		{"Count", viewers, false, func(c call) error {
			return errors.Join(last(c.client.Count(c.ctx, admin.TaskQuery{Filter: letters})),
				last(c.client.Count(c.ctx, tried)))
		}},
		{"ErrorGroups of retrying tasks", viewers, false, func(c call) error {
			retrying := admin.Filter{Type: "A", State: admin.StateRetrying}
			return last(c.client.ErrorGroups(c.ctx, admin.TaskQuery{Filter: retrying}))
		}},
		{"ErrorGroups", viewers, false, func(c call) error { return last(c.client.ErrorGroups(c.ctx, tried)) }},
		{"Redrive", operators, false, func(c call) error {
			return errors.Join(last(c.client.Redrive(c.ctx, one, admin.Bulk{})),
				last(c.client.Redrive(c.ctx, searched, admin.Bulk{Limit: 1})),
				last(c.client.Redrive(c.ctx, two, admin.Bulk{WithoutKey: true})))
		}},
		{"Purge", operators, false, func(c call) error { return last(c.client.Purge(c.ctx, searched, admin.Bulk{})) }},
		{"PurgeFinished", workers, false, func(c call) error {
			r, err := c.client.PurgeFinished(c.ctx, admin.Filter{Type: "A", OlderThan: time.Nanosecond}, admin.Bulk{})
			return errors.Join(err, want(len(r.IDs) <= 1, true, err))
		}},
		{"PurgeFinished by a payload", workers, false, func(c call) error {
			return last(c.client.PurgeFinished(c.ctx, admin.Filter{Payload: json.RawMessage(`{"a": 1}`)}, admin.Bulk{}))
		}},
		{"Redrive on the pool", operators, true, func(c call) error {
			r, err := c.client.Redrive(c.ctx, letters, admin.Bulk{})
			return errors.Join(err, want(len(r.IDs), 2, err))
		}},
		{"Purge on the pool", operators, true, func(c call) error {
			return last(c.client.Purge(c.ctx, letters, admin.Bulk{}))
		}},
		{"Tail", viewers, true, tails},
		{"HandBack", operators, true, func(c call) error {
			n, err := c.client.HandBack(c.ctx, "00000000-0000-0000-0000-000000000001")
			return errors.Join(err, want(n, 1, err))
		}},
		{"PauseSchedule and ResumeSchedule", operators, true, func(c call) error {
			return errors.Join(c.client.PauseSchedule(c.ctx, "nightly"), c.client.ResumeSchedule(c.ctx, "nightly"))
		}},
		{"PutSchedule and RunScheduleNow", operators, true, func(c call) error {
			return errors.Join(c.client.PutSchedule(c.ctx, admin.Schedule{Name: "stored", Type: "A", Spec: "1h"}, nil),
				c.client.RunScheduleNow(c.ctx, "nightly"))
		}},
		{"RemoveSchedule", operators, true, func(c call) error { return c.client.RemoveSchedule(c.ctx, "nightly") }},
		{"RunOnce", workers, true, func(c call) error {
			if _, err := c.g.admin.ExecContext(c.ctx, c.g.sql(`TRUNCATE outbox.task, outbox.dead_task`)); err != nil {
				return err
			}
			return runOnce(c.ctx, c.db, c.g.schema)
		}},
		{"Defects", workers, true, func(c call) error { return last(c.client.Defects(c.ctx, admin.RepairOptions{})) }},
		{"Defects of sequences and counts",
			viewers, true, func(c call) error { return last(c.client.Defects(c.ctx, counts)) }},
		{"Repair of sequences", "owner", true, func(c call) error {
			if _, err := c.g.admin.ExecContext(c.ctx, c.g.sql(`SELECT setval('outbox.task_task_id_seq', 1)`)); err != nil {
				return err
			}
			return last(c.client.Repair(c.ctx, admin.RepairOptions{}))
		}},
		{"Repair of the rest", workers, true, func(c call) error { return last(c.client.Repair(c.ctx, rest)) }},
		{"Reindex", "owner", true, func(c call) error { return last(c.client.Reindex(c.ctx)) }},
		{"Check", everyone, true, func(c call) error { return schema.Check(c.ctx, c.db, schema.Schema(c.g.schema)) }},
		{"Migrate with nothing to do", everyone, true, func(c call) error {
			return schema.Migrate(c.ctx, c.db, schema.Schema(c.g.schema))
		}},
		{"GrantRoles", "owner", true, func(c call) error {
			return schema.GrantRoles(c.ctx, c.db, schema.Schema(c.g.schema))
		}},
	}
}

// want is an error unless the call that has succeeded has changed so many rows.
func want[N comparable](got, want N, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("it changed %v, want %v", got, want)
	}
	return nil
}

func cancels(c call) error {
	for id, want := range map[int64]outbox.CancelResult{1001: outbox.CancelRemoved, 1003: outbox.CancelRequested,
		9999: outbox.CancelNotFound} {
		if got, err := outbox.Cancel(c.ctx, c.tx, id, c.in); err != nil || got != want {
			return errors.Join(err, fmt.Errorf("task %d: Cancel: %s", id, got))
		}
	}
	return nil
}

func runsNow(c call) error {
	for id, want := range map[int64]outbox.RunNowResult{1007: outbox.RunNowDue, 1001: outbox.RunNowNotScheduled,
		1003: outbox.RunNowNotScheduled, 9999: outbox.RunNowNotScheduled} {
		if got, err := outbox.RunNow(c.ctx, c.tx, id, c.in); err != nil || got != want {
			return errors.Join(err, fmt.Errorf("task %d: RunNow: %v", id, got))
		}
	}
	return nil
}

func readsTasks(c call) error {
	for id, state := range map[int64]admin.State{1001: admin.StateReady, 1003: admin.StateLeased, 1004: admin.StateDead,
		1006: admin.StateFinished, 1007: admin.StateScheduled} {
		if got, err := c.client.Task(c.ctx, id); err != nil || got.State != state {
			return errors.Join(err, fmt.Errorf("task %d is %s", id, got.State))
		}
	}
	for _, state := range []admin.State{admin.StateReady, admin.StateScheduled, admin.StateRetrying, admin.StateLeased,
		admin.StateWaiting, admin.StateDead, admin.StateFinished} {
		q := admin.TaskQuery{Filter: admin.Filter{Type: "A", State: state}, Limit: 1}
		page, err := c.client.Tasks(c.ctx, q)
		if q.After = page.Next; err == nil && q.After != "" {
			_, err = c.client.Tasks(c.ctx, q)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runOnce enqueues tasks of each kind, which succeed, fail, come again and die, and runs them.
func runOnce(ctx context.Context, db *sql.DB, in string) error {
	r, err := relay.New(db,
		registry(in), relay.Config{Schema: in, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			DeadRetention: time.Hour,
			Schedules: []relay.Schedule{{Name: "often", Timing: relay.Every(time.Minute),
				Task: outbox.TaskSpec{Type: "TX", Payload: number{1}}}}})
	if err != nil {
		return err
	}
	if err := r.RunOnce(ctx); err != nil {
		return err
	}
	err = outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for i, taskType := range []string{"TX", "BATCH", "LEASED", "RUNS_AGAIN", "FAILS", "DIES", "LIMITED", "DIES"} {
			for _, opts := range [][]outbox.Option{nil, {outbox.OrderedBy("o")}, {outbox.Unique("u")},
				{outbox.Headers(map[string]string{"a": "b"})}} {
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
	errNotNow := errors.New("not now")
	register := func(kind, name string, do func(ctx context.Context, tx *sql.Tx, task *outbox.Task[number]) error,
		opts ...handlers.Option) {
		relaytest.Register(reg, kind, name, 3, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[number]) error {
			return do(ctx, tx, tasks[0])
		}, opts...)
	}
	nothing := func(context.Context, *sql.Tx, *outbox.Task[number]) error { return nil }
	fails := func(context.Context, *sql.Tx, *outbox.Task[number]) error { return errNotNow }
	keep, one := handlers.Retention(time.Hour), handlers.MaxAttempts(1)
	register("tx", "TX", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[number]) error {
		return last(outbox.Enqueue(ctx, tx, "BATCH", number{1}, outbox.Schema(in), outbox.UniquePayload()))
	}, keep)
	register("batch", "BATCH", nothing, keep)
	handlers.Leased(reg, outbox.NewTaskType[number]("LEASED"), func(ctx context.Context, task *outbox.Task[number]) error {
		return errors.Join(task.Extend(ctx, time.Minute), task.Complete(ctx, func(*sql.Tx) error { return nil }))
	}, keep)
	register("leased", "RUNS_AGAIN", func(_ context.Context, _ *sql.Tx, task *outbox.Task[number]) error {
		if task.Iterations < 2 {
			return handlers.RunAgain(0)
		}
		return nil
	})
	register("tx", "FAILS", func(_ context.Context, _ *sql.Tx, task *outbox.Task[number]) error {
		if task.Attempt > 1 {
			return handlers.RetryAfter(time.Hour, errNotNow)
		}
		return errNotNow
	}, relaytest.RetrySoon())
	register("tx", "DIES", fails, one)
	register("leased", "LIMITED", fails, one, handlers.MaxRunning(2), handlers.Rate(1000, time.Second))
	return reg
}

// statements are plain SQL, each in a transaction that is rolled back.
func statements() (out []right) {
	for _, s := range []struct{ statement, may string }{
		// Enqueueing.
		{`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING task_id`, enqueuers},
		{`WITH a AS (SELECT 1) INSERT INTO outbox.task (task_type, payload) SELECT 'A', '{}' FROM a`, enqueuers},
		{`INSERT INTO outbox.task (task_type, run_at, unique_key) VALUES ('A', now() + interval '1 hour', '$payload')`, enqueuers},
		{`SELECT outbox.enqueue_task('A', '{}')`, enqueuers},
		{`INSERT INTO outbox.keyed_task (task_type, unique_key, on_conflict) VALUES ('A', 'k', 'skip') RETURNING outcome`, enqueuers},
		{`INSERT INTO outbox.task (task_type, state) VALUES ('A', 'scheduled')`, workers},
		{`INSERT INTO outbox.task (task_type, attempt) VALUES ('A', 5)`, workers},
		{`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (5000, 'A')`, workers},
		{`INSERT INTO outbox.task (task_type, state, relay_id, lease_token)
			VALUES ('A', 'leased', gen_random_uuid(), gen_random_uuid())`, workers},
		{`INSERT INTO outbox.task (task_type, payload) VALUES ('A', '{}') RETURNING payload`, workers},
		{`INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (1001, 'A')
			ON CONFLICT (task_id) DO UPDATE SET payload = '{}'`, workers},

		// Reading.
		{`SELECT count(*), max(task_id) FROM outbox.task`, everyone},
		{`SELECT max(version) FROM outbox.migration`, everyone},
		{`SELECT state, task_type, last_error, run_at FROM outbox.task`, viewers},
		{`SELECT payload FROM outbox.task`, workers},
		{`SELECT headers FROM outbox.task`, workers},
		{`SELECT unique_key, ordering_key FROM outbox.task`, workers},
		{`SELECT lease_token FROM outbox.task`, workers},
		{`SELECT * FROM outbox.task`, workers},
		{`SELECT task FROM outbox.task`, workers},
		{`SELECT task_id FROM outbox.task WHERE payload @> '{"secret": 1}'`, workers},
		{`SELECT task_id FROM outbox.task ORDER BY payload`, workers},
		{`SELECT payload FROM outbox.keyed_task`, "owner"},
		{`SELECT task_type, last_error, reason FROM outbox.dead_task`, viewers},
		{`SELECT payload FROM outbox.dead_task`, operators},
		{`SELECT headers FROM outbox.dead_task`, operators},
		{`SELECT unique_key, ordering_key FROM outbox.dead_task`, operators},
		{`SELECT task_type, finished_at FROM outbox.done_task`, viewers},
		{`SELECT payload FROM outbox.done_task`, workers},
		{`SELECT headers FROM outbox.done_task`, workers},
		{`SELECT name, next_at, paused, spec FROM outbox.schedule`, viewers},
		{`SELECT payload FROM outbox.schedule`, workers},
		{`SELECT key FROM outbox.unique_key`, workers},
		{`SELECT ordering_key FROM outbox.headless_key`, workers},
		{`SELECT host, alive_until, task_types FROM outbox.relay`, viewers},
		{`SELECT task_id, started_at FROM outbox.running`, viewers},
		{`SELECT token FROM outbox.running`, workers},
		{`SELECT lease_token FROM outbox.slot`, workers},
		{`SELECT * FROM outbox.counter, outbox.counter_log, outbox.maintenance`, viewers},
		{`SELECT last_value FROM outbox.wake`, workers},
		{`SELECT last_value FROM outbox.tail`, viewers},
		{`SELECT * FROM outbox.audit, outbox.sample`, viewers},

		// Changing.
		{`DELETE FROM outbox.task WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET payload = '{}' WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET task_type = 'B' WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET run_at = now() WHERE task_id = 1001`, workers},
		{`UPDATE outbox.task SET state = 'scheduled' WHERE task_id = 1001`, operators},
		{`SELECT task_id FROM outbox.task WHERE task_id = 1001 FOR UPDATE`, operators},
		{`UPDATE outbox.dead_task SET payload = '{}' WHERE task_id = 1004`, workers},
		{`DELETE FROM outbox.dead_task WHERE task_id = 1004`, operators},
		{`DELETE FROM outbox.done_task WHERE task_id = 1006`, workers},
		{`INSERT INTO outbox.dead_task SELECT * FROM outbox.dead_task LIMIT 0`, workers},
		{`INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('A', 'other', 1001)`, workers},
		{`INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES ('A', 'o')`, workers},
		{`DELETE FROM outbox.running`, workers},
		{`DELETE FROM outbox.cancel`, workers},
		{`INSERT INTO outbox.counter_log VALUES (1, 1, 'A', 'ready')`, workers},
		{`DELETE FROM outbox.counter_log`, workers},
		{`UPDATE outbox.schedule SET task_type = 'B'`, workers},
		{`UPDATE outbox.schedule SET payload = '{}'`, workers},
		{`UPDATE outbox.task_type SET max_running = 1`, workers},
		{`UPDATE outbox.relay SET alive_until = now()`, workers},
		{`DELETE FROM outbox.maintenance`, workers},
		{`INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING`, workers},
		{`SELECT setval('outbox.wake', 0)`, workers},
		{`SELECT setval('outbox.tail', 0)`, viewers},
		{`INSERT INTO outbox.migration (version) VALUES (999)`, "owner"},
		{`TRUNCATE outbox.task`, "owner"},

		// The audit log is added to, and changed by its owner only. Actor and time cannot be made up but
		// in the tool's own words.
		{`INSERT INTO outbox.audit (actor, tool, action) VALUES ('a', 't', 'a') RETURNING entry_id, at`, operators},
		{`INSERT INTO outbox.audit (actor, tool, action, at) VALUES ('a', 't', 'a', now())`, "owner"},
		{`INSERT INTO outbox.audit (entry_id, actor, tool, action) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 't', 'a')
			ON CONFLICT DO NOTHING`, "owner"},
		{`UPDATE outbox.audit SET actor = 'somebody else'`, "owner"},
		{`DELETE FROM outbox.audit`, "owner"},
		{`DELETE FROM outbox.sample`, workers},
		{`INSERT INTO outbox.inbox (source, event_id, keep_until) VALUES ('/s', '1', now()) ON CONFLICT DO NOTHING`, enqueuers},
		{`SELECT source FROM outbox.inbox`, workers},
		{`DELETE FROM outbox.inbox`, workers},
		{`INSERT INTO outbox.sample VALUES (now(), 1, 1, 1, 1, 1, 1, 1, 1, 'A')`, workers},

		// The functions, called directly: those that are SECURITY DEFINER most of all.
		{`SELECT outbox.cancel_task(1001)`, operators},
		{`SELECT outbox.run_task_now(1007)`, operators},
		{`SELECT outbox.redrive('{1004}', false, '')`, operators},
		{`SELECT outbox.claim_tasks('A', 0::smallint, 0::smallint, 0, 0::smallint, 10, NULL, '0', '0', '0')`, workers},
		{`SELECT outbox.claim_group('A', 0::smallint, 0::smallint, 0, 0::smallint, 10, NULL, '0', '0', '0', false)`, workers},
		{`SELECT outbox.claim_member('(0,1)', '0', '0', '0')`, workers},
		{`SELECT outbox.poll(ARRAY['A'], '{}', '{}', '{}', '{}', '{}', '{}', '{}')`, workers},
		{`SELECT outbox.promote_places(0, 10)`, workers},
		{`SELECT outbox.waits_for(1001)`, viewers},
		{`SELECT outbox.finish_tasks('{}', '{}', '{}', '{}')`, workers},
		{`SELECT outbox.complete_task(1001, NULL)`, workers},
		{`SELECT outbox.end_run(1, 1001)`, workers},
		{`SELECT outbox.rest(NULL), outbox.claimed(NULL), outbox.whole(NULL)`, workers},
		{`SELECT outbox.note_origin('staging')`, workers},
		{`SELECT outbox.this_database()`, workers},
		{`SELECT outbox.origin_state('staging')`, viewers},
		{`SELECT database_id FROM outbox.identity`, everyone},
		{`UPDATE outbox.origin SET environment = 'staging'`, workers},
		{`SELECT outbox.adopt(false, true, 'staging')`, "owner operator"},
		{`SELECT outbox.take_key('A', 'k', 1, NULL)`, "owner"},
		{`SELECT outbox.lock_waiting(1001)`, "owner"},
		{`SELECT outbox.resolve_key('$payload', '{}')`, "owner"},
		{`SELECT outbox.check_task(1001)`, "owner"},
		{`SELECT outbox.request_promotion('A', 'o', NULL)`, "owner"},
		{`CREATE TEMPORARY TABLE mine (n int); CREATE TRIGGER t AFTER INSERT ON mine FOR EACH STATEMENT
			EXECUTE FUNCTION outbox.task_truncated()`, "owner"},

		// The schema itself.
		{`CREATE TABLE outbox.other ()`, "owner"},
		{`CREATE FUNCTION outbox.other() RETURNS int LANGUAGE sql RETURN 1`, "owner"},
		{`ALTER TABLE outbox.task ADD COLUMN other int`, "owner"},
		{`ALTER TABLE outbox.task DISABLE TRIGGER ALL`, "owner"},
		{`DROP TRIGGER task_wake ON outbox.task`, "owner"},
		{`CREATE INDEX ON outbox.task (priority)`, "owner"},
		{`DROP TABLE outbox.slot`, "owner"},
		{`COMMENT ON TABLE outbox.task IS NULL`, "owner"},
	} {
		out = append(out, right{s.statement, s.may, false, func(c call) error {
			return last(c.tx.ExecContext(c.ctx, c.g.sql(s.statement)))
		}})
	}
	return out
}
