package settings_test

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type payload struct {
	Text   string
	Number float64
}

// hostile has all that a quoted text may be broken by.
const hostile = `NULL \' ' "\" \\ $$ {,} é 1.50 \n`

func (c *calls) all() {
	c.schema()
	c.enqueue()
	c.run()
	c.operate()
}

func (c *calls) schema() {
	c.say("Migrate", schema.Migrate(c.ctx, c.db.DB))
	c.say("Check", schema.Check(c.ctx, c.db))
}

// in calls f in a transaction, again after a conflict, which SERIALIZABLE has.
func (c *calls) in(what string, f func(tx *sql.Tx) (any, error)) {
	c.t.Helper()
	var out any
	transaction := func() error {
		return outbox.InTx(c.ctx, c.db.DB, func(tx *sql.Tx) (err error) { out, err = f(tx); return err })
	}
	err := transaction()
	for pgerr.Conflict(err) {
		err = transaction()
	}
	c.say(what, out, err)
}

func (c *calls) enqueue() {
	header := map[string]string{"k\\": hostile}
	options := [][]outbox.Option{
		nil, {outbox.Priority(-3)}, {outbox.MaxAttempts(2)}, {outbox.Headers(header)}, {outbox.RunAt(time.Now().Add(24 * time.Hour))},
		{outbox.After(48 * time.Hour)}, {outbox.Timeout(1500 * time.Millisecond)}, {outbox.OrderedBy(hostile)}, {outbox.OrderedBy("NULL"), outbox.SkipFailed()},
		{outbox.Unique(hostile)}, {outbox.Unique("NULL", outbox.UntilDone())}, {outbox.UniquePayload()},
		{outbox.Unique(hostile), outbox.OnConflict(outbox.ConflictReplace), outbox.After(time.Hour)},
		{outbox.UniquePayload(), outbox.OnConflict(outbox.ConflictReschedule), outbox.After(time.Hour)},
	}
	payloads := []payload{{"", 1}, {hostile, 1.5}, {"NULL", 2e-7}, {`\"10.500\"`, 150}}
	for _, taskType := range []string{"One", "NULL"} {
		var many []outbox.TaskSpec
		for _, p := range payloads {
			for _, o := range options {
				many = append(many, outbox.TaskSpec{Type: taskType + " many", Payload: p, Options: o})
				c.in("Enqueue", func(tx *sql.Tx) (any, error) {
					e, err := outbox.Enqueue(c.ctx, tx, taskType, p, o...)
					return e.Outcome, err
				})
			}
		}
		// with keys, without, one of three
		for _, tasks := range [][]outbox.TaskSpec{many, many[:9], {many[0], many[9], many[14]}} {
			c.in("EnqueueMany", func(tx *sql.Tx) (any, error) {
				all, err := outbox.EnqueueMany(c.ctx, tx, tasks)
				var outcomes []outbox.Outcome
				for _, e := range all {
					outcomes = append(outcomes, e.Outcome)
				}
				return outcomes, err
			})
		}
	}
	for range 2 {
		c.in("inbox", func(tx *sql.Tx) (any, error) { return inbox.Once(c.ctx, tx, hostile, "NULL") })
	}
	forgotten, err := inbox.Purge(c.ctx, c.db.DB)
	c.say("Purge", forgotten, err)
	c.dump("task")
	c.dump("unique_key")
	c.stats()
	for _, state := range []string{"ready", "scheduled", "waiting"} {
		id := int64(c.db.Int(c.t, `SELECT min(task_id) FROM outbox.task WHERE state = '`+state+`'`))
		c.in("RunNow "+state, func(tx *sql.Tx) (any, error) { return outbox.RunNow(c.ctx, tx, id) })
		c.in("Cancel "+state, func(tx *sql.Tx) (any, error) { return outbox.Cancel(c.ctx, tx, id) })
	}
	c.db.Do(c.t, `TRUNCATE outbox.task`)
}

func (c *calls) stats() {
	stats, err := outbox.Stats(c.ctx, c.db)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range stats {
		s.OldestReady, s.NextRunAt = 0, time.Time{}
		c.say("Stats", s)
	}
}

func registry() *handlers.Registry {
	reg := handlers.New()
	type task = outbox.Task[payload]
	of := outbox.NewTaskType[payload]
	relaytest.Tx(reg, of("tx"), func(ctx context.Context, tx *sql.Tx, t *task) error {
		_, err := outbox.Enqueue(ctx, tx, "batch", t.Payload, outbox.UniquePayload())
		return err
	}, handlers.Retention(time.Hour))
	handlers.Tx(reg, of("group"), func(context.Context, *sql.Tx, *task) error {
		return nil
	}, handlers.GroupCommit(10, time.Second), handlers.Retention(time.Hour))
	handlers.Batch(reg, of("batch"), 3, func(context.Context, *sql.Tx, []*task) error {
		return nil
	}, handlers.Retention(time.Hour))
	handlers.Leased(reg, of("leased"), func(context.Context, *task) error { return nil }, handlers.Retention(time.Hour))
	handlers.Leased(reg, of("complete"), func(ctx context.Context, t *task) error {
		if err := t.Extend(ctx, time.Minute); err != nil {
			return err
		}
		return t.Complete(ctx, func(tx *sql.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, "group", t.Payload, outbox.Headers(t.Headers))
			return err
		})
	}, handlers.Retention(time.Hour))
	handlers.Leased(reg, of("again"), func(_ context.Context, t *task) error {
		if t.Iterations < 2 {
			return handlers.RunAgainWith(t, 0, payload{hostile, float64(t.Iterations)})
		}
		return nil
	}, handlers.Retention(time.Hour))
	for kind, add := range map[string]func(taskType string, h func(t *task) error){
		"tx": func(taskType string, h func(t *task) error) {
			handlers.Tx(reg, of(taskType), func(_ context.Context, _ *sql.Tx, t *task) error {
				return h(t)
			}, handlers.MaxAttempts(2), relaytest.RetrySoon(), handlers.Retention(time.Hour))
		},
		"leased": func(taskType string, h func(t *task) error) {
			handlers.Leased(reg, of(taskType), func(_ context.Context, t *task) error {
				return h(t)
			}, handlers.MaxAttempts(2), relaytest.RetrySoon(), handlers.Retention(time.Hour),
				handlers.MaxRunning(3), handlers.Rate(1000, time.Second))
		},
	} {
		add(kind+" fails once", func(t *task) error {
			if t.Attempt == 1 {
				return errors.New(hostile)
			}
			return nil
		})
		add(kind+" dies", func(*task) error { return errors.New(hostile) })
		add(kind+" discards", func(t *task) error { return handlers.Discard(errors.New(t.Payload.Text)) })
		add(kind+" waits once", func(t *task) error {
			if t.LastError == "" {
				return handlers.RetryAfter(time.Microsecond, errors.New(hostile))
			}
			return nil
		})
	}
	return reg
}

func (c *calls) run() {
	schedule := []relay.Schedule{{Name: hostile, Timing: relay.Every(time.Hour),
		Task: outbox.TaskSpec{Type: "scheduled", Payload: payload{hostile, 1}}}}
	config := relay.Config{ListenDSN: c.address, Schedules: schedule, PollInterval: 50 * time.Millisecond,
		DeadRetention: time.Hour, Workers: 4}
	r := relaytest.Run(c.t, c.db.DB, registry(), config)
	for _, taskType := range []string{"tx", "group", "batch", "leased", "complete", "tx discards", "leased discards", "again",
		"tx fails once", "leased fails once", "tx waits once", "leased waits once", "tx dies", "leased dies"} {
		c.in(taskType, func(tx *sql.Tx) (any, error) {
			all, err := outbox.EnqueueMany(c.ctx, tx, []outbox.TaskSpec{
				{Type: taskType, Payload: payload{"plain", 1}},
				{Type: taskType, Payload: payload{hostile,
					2}, Options: []outbox.Option{outbox.Headers(map[string]string{"NULL": hostile}), outbox.OrderedBy(hostile)}},
				{Type: taskType, Payload: payload{"", 3}, Options: []outbox.Option{outbox.Unique(hostile),
					outbox.OrderedBy(hostile)}},
			})
			return len(all), err
		})
	}
	relaytest.Eventually(c.t, time.Minute, "all tasks are done or dead", func() bool {
		return c.db.Int(c.t, `SELECT count(*) FROM outbox.task WHERE task_type <> 'scheduled'`) == 0
	})
	r.Stop()
	r.Log.Want(c.t, r.Log.Count("a task became a dead letter"), "level=ERROR")
	for _, table := range []string{"task", "dead_task", "done_task", "schedule", "running"} {
		c.dump(table)
	}
	c.stats()
}

func (c *calls) operate() {
	client := relaytest.Admin(c.t, c.db.DB)
	check := func(what string, err error) {
		c.t.Helper()
		c.say(what, err)
	}
	quoted := admin.Filter{State: admin.StateDead, Error: `\' '`, Type: "tx dies"}
	letters, err := client.Tasks(c.ctx, admin.TaskQuery{Filter: quoted, Limit: 10})
	c.say("DeadLetters", len(letters.Tasks), err)
	for _, l := range letters.Tasks {
		_, err1 := client.Task(c.ctx, l.ID)
		_, err2 := client.Payload(c.ctx, l.ID)
		_, err3 := client.Audit(c.ctx, admin.AuditQuery{TaskID: l.ID})
		c.say("Task", l.Type, l.LastError, err1, err2, err3)
	}
	groups, err := client.ErrorGroups(c.ctx, admin.TaskQuery{Filter: admin.Filter{State: admin.StateDead}})
	c.say("ErrorGroups", len(groups), err)
	n, err := client.Count(c.ctx, admin.TaskQuery{Filter: admin.Filter{Error: "NULL"}})
	c.say("Count", n.Count, err)
	done, err := client.Redrive(c.ctx, admin.Filter{Type: "tx dies"}, admin.Bulk{})
	c.say("Redrive", len(done.IDs), err)
	done, err = client.Purge(c.ctx, admin.Filter{Type: "leased dies"}, admin.Bulk{})
	c.say("Purge", len(done.IDs), err)
	done, err = client.PurgeFinished(c.ctx, admin.Filter{Type: "no such"}, admin.Bulk{})
	c.say("PurgeFinished", len(done.IDs), err)
	c.change(client)
	for _, state := range []admin.State{admin.StateReady, admin.StateScheduled, admin.StateRetrying, admin.StateLeased,
		admin.StateWaiting, admin.StateDead, admin.StateFinished} {
		q := admin.TaskQuery{Filter: admin.Filter{Type: "tx dies", State: state}, Limit: 1}
		page, err := client.Tasks(c.ctx, q)
		c.say("Tasks", state, len(page.Tasks), err)
		if q.After = page.Next; q.After != "" {
			_, err = client.Tasks(c.ctx, q)
			check("Tasks", err)
		}
	}
	check("PauseType", client.PauseType(c.ctx, "tx dies"))
	check("ResumeType", client.ResumeType(c.ctx, "tx dies"))
	check("PauseSchedule", client.PauseSchedule(c.ctx, hostile))
	check("ResumeSchedule", client.ResumeSchedule(c.ctx, hostile))
	types, err := client.Types(c.ctx)
	c.say("Types", len(types), err)
	_, err = client.Relays(c.ctx)
	check("Relays", err)
	schedules, err := client.Schedules(c.ctx)
	c.say("Schedules", len(schedules), schedules[0].Name, err)
	_, err = client.Samples(c.ctx, admin.SampleQuery{Type: "tx"})
	check("Samples", err)
	check("RemoveSchedule", client.RemoveSchedule(c.ctx, hostile))
	entries, err := client.Audit(c.ctx, admin.AuditQuery{})
	c.say("Audit", len(entries.Entries), err)
	for _, e := range entries.Entries {
		c.say("entry", e.Action, e.Target, e.Count)
	}
	relaytest.Once(c.t, c.db.DB, registry(), relay.Config{})
	c.dump("task")
	c.dump("dead_task")
	found, err := doctor.Check(c.ctx, c.db.DB)
	check("doctor", err)
	for _, f := range found {
		if f.Severity == doctor.SeverityUnknown {
			c.t.Errorf("doctor: %+v", f)
		}
	}
	_, err = client.Reindex(c.ctx)
	check("Reindex", err)
	c.origin(client)
}

// change does to waiting tasks what an operator may.
func (c *calls) change(client *admin.Client) {
	opts := []outbox.Option{outbox.Unique(hostile), outbox.GroupBy(hostile), outbox.After(time.Hour)}
	var id int64
	c.say("enqueue", outbox.InTx(c.ctx, c.db.DB, func(tx *sql.Tx) error {
		e, err := outbox.Enqueue(c.ctx, tx, "old name", "text", opts...)
		id = e.ID
		return err
	}))
	old := admin.Filter{Type: "old name", Before: time.Now().Add(time.Hour)}
	by := old
	by.UniqueKey, by.GroupKey, by.Payload = hostile, hostile, []byte(`"text"`)
	n, err := client.Count(c.ctx, admin.TaskQuery{Filter: by})
	c.say("Count by keys", n.Count, err)
	r, err := client.Reschedule(c.ctx, by, time.Now().Add(2*time.Hour), admin.Bulk{})
	c.say("Reschedule", len(r.IDs), err)
	r, err = client.SetPriority(c.ctx, old, 5, admin.Bulk{})
	c.say("SetPriority", len(r.IDs), err)
	c.say("SetPayload", client.SetPayload(c.ctx, id, hostile))
	r, err = client.RunNow(c.ctx, old, admin.Bulk{})
	c.say("RunNow", len(r.IDs), err)
	r, err = client.Retype(c.ctx, old, "new name", admin.Bulk{})
	c.say("Retype", len(r.IDs), err)
	r, err = client.Cancel(c.ctx, admin.Filter{Type: "new name", UniqueKey: hostile}, admin.Bulk{})
	c.say("Cancel", len(r.IDs), err)
}

// origin breaks what Repair mends, and has another environment adopt the database.
func (c *calls) origin(client *admin.Client) {
	c.db.Do(c.t, `INSERT INTO outbox.task (task_type, unique_key, attempted_at, state)
		VALUES ('NULL', 'NULL', now(), 'scheduled'), ('tx', $1, now(), 'scheduled')`, hostile)
	c.db.Do(c.t, `INSERT INTO outbox.unique_key (task_type, key, task_id) SELECT 'NULL', $1, task_id FROM outbox.task
		WHERE unique_key = 'NULL'`, hostile)
	c.db.Do(c.t, `INSERT INTO outbox.task (task_type, ordering_key, state) VALUES ('tx', $1, 'waiting')`, hostile)
	c.db.Do(c.t, `DELETE FROM outbox.headless_key`)
	c.db.Do(c.t, `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (3, 'NULL', 'ready')`)
	found, err := client.Repair(c.ctx, admin.RepairOptions{Above: 1000})
	for _, d := range found {
		c.say("defect", d.Kind, d.Subject, d.Is, d.ShouldBe, d.Conflict)
	}
	left, again := client.Defects(c.ctx, admin.RepairOptions{})
	c.say("Repair", len(found), left, err, again)
	c.say("keys", c.db.Text(c.t, `SELECT concat((SELECT string_agg(key, ';' ORDER BY key COLLATE "C")
		FROM outbox.unique_key JOIN outbox.task USING (task_id)),
		';', (SELECT string_agg(ordering_key, ';') FROM outbox.headless_key))`))
	task, err := client.Task(c.ctx, int64(c.db.Int(c.t, `SELECT task_id FROM outbox.task WHERE unique_key = 'NULL'`)))
	byKey, err2 := client.TaskByKey(c.ctx, task.Key)
	c.say("TaskByKey", byKey.ID == task.ID, err, err2)
	was, err := client.Origin(c.ctx)
	c.say("Origin", was.Environment, was.Copy, was.Hidden, was.Problem, err)
	adopted, err := client.Adopt(c.ctx, admin.AdoptOptions{Environment: hostile, Discard: true})
	c.say("Adopt", adopted.Leases, adopted.Tasks, adopted.DeadLetters, adopted.Schedules,
		adopted.DatabaseID == was.DatabaseID, err)
	now, err := client.Origin(c.ctx)
	c.say("Origin", now.Environment, now.Copy, now.Problem, err)
}
