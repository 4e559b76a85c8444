package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/timeline"
	"github.com/txoutbox/outbox/relay"
)

// listed are statements that insert tasks of the type A in a state, n of them, with equals in what
// they are ordered by; and the query of their order.
var listed = map[admin.State]struct{ insert, order string }{
	admin.StateReady: {`INSERT INTO outbox.task (task_type, priority, attempt) SELECT 'A', n % 3 - 1, n % 2`,
		`FROM outbox.task WHERE state = 'ready' AND task_type = 'A' ORDER BY priority, attempt, task_id`},
	admin.StateScheduled: {`INSERT INTO outbox.task (task_type, run_at) SELECT 'A', now() + (7 - n % 7) * interval '1 hour'`,
		`FROM outbox.task WHERE state = 'scheduled' AND attempt = 0 AND task_type = 'A' ORDER BY run_at, task_id`},
	admin.StateRetrying: {`INSERT INTO outbox.task (task_type, state, attempt, run_at)
			SELECT 'A', 'scheduled', 1 + n % 3, now() + (7 - n % 7) * interval '1 hour'`,
		`FROM outbox.task WHERE state = 'scheduled' AND attempt > 0 AND task_type = 'A' ORDER BY run_at, task_id`},
	admin.StateLeased: {`INSERT INTO outbox.task (task_type, state, relay_id, lease_token)
			SELECT 'A', 'leased', gen_random_uuid(), gen_random_uuid()`,
		`FROM outbox.task WHERE state = 'leased' AND task_type = 'A' ORDER BY task_id`},
	admin.StateWaiting: {`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'A', 'k' || 100 - n`,
		`FROM outbox.task WHERE state = 'waiting' AND task_type = 'A' ORDER BY task_id`},
	admin.StateDead: {`WITH enqueued AS (
			INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, $1::int, 'A', 'ready'))
		INSERT INTO outbox.dead_task
			(task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload)
		SELECT nextval('ids'), now(), now(), now() - n % 4 * interval '1 day', 0, 1, 1, 'handler', 'A', '{}'`,
		`FROM outbox.dead_task WHERE task_type = 'A' ORDER BY died_at DESC, task_id DESC`},
	admin.StateFinished: {`INSERT INTO outbox.done_task
			(task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
		SELECT nextval('ids'), now(), now(), now(), now(), 0, 1, 'A', '{}'`,
		`FROM outbox.done_task WHERE task_type = 'A' ORDER BY task_id DESC`},
}

func TestPagesHaveEachTaskOnceInItsOrder(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE SEQUENCE ids START 1000000`)
		c := client(t, db.DB)
		all := func(taskType string, state admin.State, limit int, between func()) []admin.Task {
			t.Helper()
			tasks, n := pages(t, limit, func(after string) ([]admin.Task, string, error) {
				if after != "" {
					between()
				}
				q := admin.TaskQuery{Filter: admin.Filter{Type: taskType, State: state}, After: after, Limit: limit}
				return tasksOf(c.Tasks(t.Context(), q))
			})
			if n != (max(len(tasks), 1)+limit-1)/limit {
				t.Errorf("%s: %d tasks are on %d pages of %d", state, len(tasks), n, limit)
			}
			return tasks
		}
		for state, of := range listed {
			insert := of.insert + ` FROM generate_series(1, $1::int) n`
			db.Do(t, insert, 40)
			db.Do(t, strings.ReplaceAll(insert, "'A'", "'B'"), 3) // of another type
			text := db.Text(t, `SELECT json_agg(task_id) FROM (SELECT task_id `+of.order+`) o`)
			var want []int64
			if err := json.Unmarshal([]byte(text), &want); err != nil || len(want) != 40 {
				t.Fatalf("%s: %d tasks, %v", state, len(want), err)
			}
			for _, limit := range []int{1, 7, 20, 40, 41, 1000} {
				got := all("A", state, limit, func() {})
				if !slices.Equal(ids(got), want) {
					t.Errorf("%s in pages of %d: %v, want %v", state, limit, ids(got), want)
				}
				if i := slices.IndexFunc(got, func(x admin.Task) bool { return x.Type != "A" || x.State != state }); i >= 0 {
					t.Errorf("%s: %+v", state, got[i])
				}
			}
			// Others come and go meanwhile: those that keep their place are each there once.
			gone := map[int64]bool{}
			seen := map[int64]int{}
			for _, task := range all("A", state, 3, func() {
				victim := want[len(gone)*2%len(want)]
				gone[victim] = true
				for _, table := range []string{"task", "dead_task", "done_task"} {
					db.Do(t, `DELETE FROM outbox.`+table+` WHERE task_id = $1`, victim)
				}
				db.Do(t, insert, 1)
			}) {
				seen[task.ID]++
			}
			for _, id := range want {
				if n := seen[id]; n > 1 || n == 0 && !gone[id] {
					t.Errorf("%s: task %d was listed %d times while others came and went", state, id, n)
				}
			}
			db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.dead_task WHERE task_type = 'A';
				DELETE FROM outbox.done_task WHERE task_type = 'A'`)
		}
		for _, state := range []admin.State{admin.StateDead, admin.StateFinished} {
			if got := all("", state, 2, func() {}); len(got) < 3 || got[0].Type != "B" {
				t.Errorf("%s of all types: %+v", state, got)
			}
		}
	})
}

// scene is an outbox with a task in each state, of which those that run go on until the test ends.
type scene struct {
	ready, scheduled, retried, leased, waiting, dead, finished, tx int64
	batch                                                          []int64
}

type number struct{ N int }

func newScene(t *testing.T, db *database) *scene {
	t.Helper()
	full := func(taskType string, n int, opts ...outbox.Option) int64 {
		headers := outbox.Headers(map[string]string{"trace": "h"})
		opts = append(opts, headers, outbox.Priority(3), outbox.MaxAttempts(4), outbox.Timeout(90*time.Second))
		return enqueue(t, db, taskType, number{n}, opts...)
	}
	s := &scene{}
	s.scheduled = full("LATER", 2, outbox.After(time.Hour), outbox.Unique("u2"))
	s.leased = full("LEASED", 3)
	s.dead = full("DIES", 5, outbox.Unique("u5"), outbox.OrderedBy("o5"))
	s.finished = full("KEPT", 6)
	s.retried = enqueue(t, db, "FAILS", number{7})
	enqueue(t, db, "ORDERED", number{8}, outbox.OrderedBy("o8"), outbox.After(time.Hour))
	s.waiting = full("ORDERED", 8, outbox.OrderedBy("o8"))
	s.tx = enqueue(t, db, "TX", number{9})
	for n := range 3 {
		s.batch = append(s.batch, enqueue(t, db, "BATCH", number{10 + n}))
	}
	s.ready = full("NOBODYS", 1, outbox.Unique("u1"))

	reg, release := handlers.New(), make(chan struct{})
	block := func() error { <-release; return nil }
	leased := func(name string, result func() error, opts ...handlers.Option) {
		handlers.Leased(reg, outbox.NewTaskType[number](name),
			func(context.Context, *outbox.Task[number]) error { return result() }, opts...)
	}
	leased("LEASED", block)
	leased("DIES", func() error { return handlers.Dead(errors.New("boom")) })
	leased("FAILS", func() error { return errors.New("busy") }, handlers.Backoff(relaytest.Constant(time.Hour)))
	leased("KEPT", func() error { return handlers.Discard(errors.New("gone")) }, handlers.Retention(time.Hour))
	leased("ORDERED", block)
	handlers.Tx(reg, outbox.NewTaskType[number]("TX"),
		func(context.Context, *sql.Tx, *outbox.Task[number]) error { return block() })
	handlers.Batch(reg, outbox.NewTaskType[number]("BATCH"), 10,
		func(context.Context, *sql.Tx, []*outbox.Task[number]) error { return block() })
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 20})
	t.Cleanup(func() { close(release) })
	relaytest.Eventually(t, 20*time.Second, "all has begun", func() bool {
		return db.Text(t, `SELECT concat_ws(' ',
			(SELECT count(*) FROM outbox.task WHERE state = 'leased'),
			(SELECT count(*) FROM outbox.running),
			(SELECT count(*) FROM outbox.dead_task),
			(SELECT count(*) FROM outbox.done_task),
			(SELECT count(*) FROM outbox.task WHERE attempt = 1 AND state = 'scheduled'),
			(SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND task_type = 'ORDERED'))`) == "1 2 1 1 1 1"
	})
	return s
}

func TestWithoutATypeAndAStateTheNewestTasksAreListed(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE SEQUENCE ids START 1000000`)
		for _, of := range listed {
			db.Do(t, of.insert+` FROM generate_series(1, $1::int) n`, 4)
		}
		text := db.Text(t, `SELECT json_agg(task_id ORDER BY task_id DESC) FROM (SELECT task_id FROM outbox.task
			UNION ALL SELECT task_id FROM outbox.dead_task UNION ALL SELECT task_id FROM outbox.done_task) AS every`)
		var want []int64
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt,
				task_type, payload)
			SELECT task_id, run_at, created_at, now(), now(), 0, 1, task_type, payload FROM outbox.task`) // they came back
		tasks, _ := pages(t, 3, func(after string) ([]admin.Task, string, error) {
			return tasksOf(client(t, db.DB).Tasks(t.Context(), admin.TaskQuery{After: after, Limit: 3}))
		})
		if !slices.Equal(ids(tasks), want) || len(want) != 4*len(listed) {
			t.Errorf("got %v, want %v", ids(tasks), want)
		}
		for state := range listed {
			if !slices.ContainsFunc(tasks, func(x admin.Task) bool { return x.State == state }) {
				t.Errorf("no task is %s", state)
			}
		}
	})
}

// A page of scheduled tasks passes over so many retrying ones, and says where to go on.
func TestAPageOfScheduledTasksEndsAmongManyRetryingOnes(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, run_at)
		SELECT 'A', 'scheduled', CASE n WHEN 50 THEN 0 ELSE 1 END, now() + n * interval '1 hour'
		  FROM generate_series(1, 60) AS n`)
	q := admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateScheduled}, Limit: 1}
	var got []int
	for {
		page, err := client(t, db.DB).Tasks(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, len(page.Tasks))
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if !slices.Equal(got, []int{0, 0, 1, 0}) {
		t.Errorf("the pages have %v tasks, want none, none, one and none", got)
	}
}

func TestATaskIsFoundWhereverItIs(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		s, c := newScene(t, db), client(t, db.DB)
		relayID := db.Text(t, `SELECT relay_id::text FROM outbox.relay`)
		full := func(taskType string, state admin.State, attempt int) admin.Task {
			return admin.Task{
				Type: taskType, State: state, Priority: 3, Attempt: attempt, MaxAttempts: 4, Timeout: 90 * time.Second,
			}
		}
		retried := admin.Task{Type: "FAILS", State: admin.StateRetrying, Attempt: 1, LastError: "busy"}
		leased := full("LEASED", admin.StateLeased, 1)
		leased.Runs, leased.RelayID = []admin.Run{{TaskIDs: []int64{s.leased}}}, relayID
		dead := full("DIES", admin.StateDead, 1)
		dead.Reason, dead.LastError = outbox.ReasonHandler, "boom"
		finished := full("KEPT", admin.StateFinished, 1)
		finished.Outcome, finished.LastError = "discarded", "gone"
		inTx := admin.Task{Type: "TX", State: admin.StateReady, Runs: []admin.Run{{TaskIDs: []int64{s.tx}}}}
		inBatch := admin.Task{Type: "BATCH", State: admin.StateReady, Runs: []admin.Run{{TaskIDs: s.batch}}}
		for _, of := range []struct {
			id      int64
			want    admin.Task // without id and times; its runs have TaskIDs only
			secrets string     // n, headers, unique key and ordering key
		}{
			{s.ready, full("NOBODYS", admin.StateReady, 0), `{"N": 1} {"trace": "h"} u1 `},
			{s.scheduled, full("LATER", admin.StateScheduled, 0), `{"N": 2} {"trace": "h"} u2 `},
			{s.retried, retried, `{"N": 7}   `},
			{s.leased, leased, `{"N": 3} {"trace": "h"}  `},
			{s.waiting, full("ORDERED", admin.StateWaiting, 0), `{"N": 8} {"trace": "h"}  o8`},
			{s.dead, dead, `{"N": 5} {"trace": "h"} u5 o5`},
			{s.finished, finished, `{"N": 6} {"trace": "h"}  `},
			{s.tx, inTx, `{"N": 9}   `},
			{s.batch[1], inBatch, `{"N": 11}   `},
		} {
			got, err := c.Task(t.Context(), of.id)
			if err != nil {
				t.Errorf("%s: %v", of.want.Type, err)
				continue
			}
			ended := got.State == admin.StateDead || got.State == admin.StateFinished
			times := []bool{
				got.CreatedAt.IsZero(), got.RunAt.IsZero(), got.AttemptedAt.IsZero(), got.EndedAt.IsZero(),
				got.KeepUntil.IsZero(), got.LeasedUntil.IsZero(), len(got.Timeline) == 0,
			}
			wanted := []bool{
				false, false, got.Attempt == 0, !ended,
				got.State != admin.StateFinished, got.State != admin.StateLeased, !ended && got.LastError == "",
			}
			key := fmt.Sprintf("-8000-%012x", of.id)
			if !slices.Equal(times, wanted) || got.ID != of.id || !strings.HasSuffix(got.Key, key) {
				t.Errorf("%s: %+v", of.want.Type, got)
			}
			for i, r := range got.Runs {
				if r.Type != got.Type || r.Lost || r.StartedAt.IsZero() || r.RelayID != relayID {
					t.Errorf("%s: run %+v", of.want.Type, r)
				}
				got.Runs[i] = admin.Run{TaskIDs: r.TaskIDs}
			}
			got.ID, got.Key, got.Timeline = 0, "", nil
			for _, at := range []*time.Time{
				&got.CreatedAt, &got.RunAt, &got.AttemptedAt, &got.EndedAt, &got.KeepUntil, &got.LeasedUntil,
			} {
				*at = time.Time{}
			}
			if len(got.Runs) == 0 {
				got.Runs = nil
			}
			if !reflect.DeepEqual(got, of.want) {
				t.Errorf("got %+v, want %+v", got, of.want)
			}
			hidden, err := c.Payload(t.Context(), of.id)
			text := fmt.Sprintf("%s %s %s %s", hidden.Payload, hidden.Headers, hidden.UniqueKey, hidden.OrderingKey)
			if text != of.secrets || err != nil {
				t.Errorf("%s: got %q %v, want %q", of.want.Type, text, err, of.secrets)
			}
		}
		for _, id := range []int64{0, -1, 1 << 60} {
			_, err1 := c.Task(t.Context(), id)
			_, err2 := c.Payload(t.Context(), id)
			if !errors.Is(err1, admin.ErrNotFound) || !errors.Is(err2, admin.ErrNotFound) {
				t.Errorf("%d: %v, %v, want ErrNotFound", id, err1, err2)
			}
		}
		for state, want := range map[admin.State]struct {
			taskType string
			ids      []int64
		}{
			admin.StateReady: {"BATCH", s.batch}, admin.StateRetrying: {"FAILS", []int64{s.retried}},
			admin.StateLeased: {"LEASED", []int64{s.leased}}, admin.StateWaiting: {"ORDERED", []int64{s.waiting}},
			admin.StateDead: {"", []int64{s.dead}}, admin.StateFinished: {"", []int64{s.finished}},
		} {
			f := admin.Filter{Type: want.taskType, State: state}
			tasks, next, err := tasksOf(c.Tasks(t.Context(), admin.TaskQuery{Filter: f}))
			if err != nil || !slices.Equal(ids(tasks), want.ids) || next != "" {
				t.Errorf("%s: got %+v %q %v, want %v", state, tasks, next, err, want.ids)
				continue
			}
			one, err := c.Task(t.Context(), want.ids[0])
			if one.Runs, one.Timeline = nil, nil; err != nil || !reflect.DeepEqual(tasks[0], one) {
				t.Errorf("%s: the list has %+v, Task %+v, %v", state, tasks[0], one, err)
			}
		}
	})
}

// A new column of a task is read for tools, or is named here.
func TestATaskIsReadFromEachColumn(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	ofSecrets := []string{"payload", "headers", "ordering_key", "group_key", "unique_key", "lease_token"}
	unused := []string{"skip_failed", "unique_until_done", "timeline", "group_place"}
	names := db.Text(t, `SELECT string_agg(attname, ' ') FROM pg_attribute
		WHERE attrelid = 'outbox.task'::regclass AND attnum > 0 AND NOT attisdropped`)
	for name := range strings.FieldsSeq(names) {
		read := strings.Contains(admin.Columns, "t."+name)
		if read == slices.Contains(slices.Concat(ofSecrets, unused), name) {
			t.Errorf("column %s is read: %v", name, read)
		}
	}
	fill(t, db, "task", 1, map[string]any{"state": "leased"})
	fill(t, db, "dead_task", 2, map[string]any{"state": "dead", "reason": outbox.ReasonHandler})
	fill(t, db, "done_task", 3, map[string]any{"state": "finished"})
	db.Do(t, `INSERT INTO outbox.cancel (task_id) SELECT generate_series(1, 3)`)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, progress)
		SELECT gen_random_uuid(), 'h', 1, now() + interval '1 hour', '{}', jsonb_object_agg(n, '{"fraction": 0.4}'::jsonb)
		  FROM generate_series(1, 3) AS n`)
	for i, lacks := range [][]string{{"EndedAt", "KeepUntil", "Reason", "Outcome"},
		{"KeepUntil", "Outcome", "CancelRequestedAt", "Progress"}, {"Reason", "CancelRequestedAt", "Progress"}} {
		task, err := client(t, db.DB).Task(t.Context(), int64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		for i, of := 0, reflect.ValueOf(task); i < of.NumField(); i++ {
			name := of.Type().Field(i).Name
			if name != "Runs" && of.Field(i).IsZero() != slices.Contains(lacks, name) {
				t.Errorf("%s of a %s task is %v", name, task.State, of.Field(i))
			}
		}
	}
}

func TestEventKindsAreThoseThatRelaysWrite(t *testing.T) {
	t.Parallel()
	for kind, written := range map[admin.EventKind]string{
		admin.EventFailed: timeline.Failed, admin.EventThrottled: timeline.Throttled, admin.EventLost: timeline.Lost,
		admin.EventLeaseLost: timeline.LeaseLost, admin.EventDead: timeline.Dead, admin.EventRedriven: timeline.Redriven,
		admin.EventReplaced: timeline.Replaced,
	} {
		if string(kind) != written {
			t.Errorf("%s is written as %s", kind, written)
		}
	}
}

// story is a task's timeline in short.
func story(t *testing.T, c *admin.Client, id int64) string {
	t.Helper()
	task, err := c.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	var last time.Time
	for _, e := range task.Timeline {
		lines = append(lines, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Attempt, " ", e.Reason, e.Actor)))
		ofRun := e.RelayID != "" && e.Duration > 0 && e.Error != ""
		if e.At.IsZero() || e.At.Before(last) || (e.Kind == admin.EventFailed) != ofRun {
			t.Errorf("event %+v after %v", e, last)
		}
		last = e.At
	}
	return strings.Join(lines, ", ")
}

func TestTheTimelineOfATaskHasEachAttemptTheRedriveAndItsEnd(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	long := strings.Repeat("é", 600)
	told := make(chan []outbox.FailedAttempt, 1)
	work := func(task *outbox.Task[number]) error {
		if len(task.FailedAttempts) < 6 {
			return errors.New(long)
		}
		told <- task.FailedAttempts
		return nil
	}
	opts := []handlers.Option{
		handlers.MaxAttempts(6), handlers.Retention(time.Hour), handlers.Backoff(relaytest.Constant(time.Nanosecond)),
	}
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[number]("TX"),
		func(_ context.Context, _ *sql.Tx, task *outbox.Task[number]) error { return work(task) }, opts...)
	handlers.Batch(reg, outbox.NewTaskType[number]("BATCH"), 10,
		func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[number]) error { return work(tasks[0]) }, opts...)
	handlers.Leased(reg, outbox.NewTaskType[number]("LEASED"),
		func(_ context.Context, task *outbox.Task[number]) error { return work(task) }, opts...)
	handlers.Leased(reg, outbox.NewTaskType[number]("COMPLETE"),
		func(ctx context.Context, task *outbox.Task[number]) error {
			return task.Complete(ctx, func(*sql.Tx) error { return work(task) })
		}, opts...)
	relaytest.Run(t, db.DB, reg, relay.Config{PollInterval: 20 * time.Millisecond})
	c := client(t, db.DB, admin.Config{Actor: "admin", Tool: "test"})
	for _, taskType := range []string{"TX", "BATCH", "LEASED", "COMPLETE"} {
		id := enqueue(t, db, taskType, number{1})
		relaytest.Eventually(t, 30*time.Second, taskType+" is dead", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == 1
		})
		if _, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{id}}, admin.Bulk{}); err != nil {
			t.Fatal(err)
		}
		for i, e := range <-told {
			if e.Attempt != i+1 || e.At.IsZero() || e.RelayID == "" || e.Duration <= 0 || e.Error != long[:1024] {
				t.Errorf("%s: the handler gets %+v as error %d", taskType, e, i)
			}
		}
		db.Emptied(t, 30*time.Second)
		const want = "failed 1, failed 2, failed 3, failed 4, failed 5, failed 6 attempts, redriven 0 admin, finished 1"
		if got := story(t, c, id); got != want {
			t.Errorf("%s: %s, want %s", taskType, got, want)
		}
	}
}

func TestTheRetryingTasksOfATypeAreMadeDueInPortions(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, run_at)
		SELECT 'A', 'scheduled', 1, now() + n * interval '1 minute' FROM generate_series(1, 2003) AS n`)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, state, attempt, run_at) OVERRIDING SYSTEM VALUE
		VALUES (9001, 'A', 'scheduled', 0, now() + interval '1 hour'),
			(9002, 'B', 'scheduled', 1, now() + interval '1 hour'),
			(9003, 'A', 'scheduled', 1, now() + interval '1 hour'),
			(9004, 'A', 'scheduled', 1, now() + interval '9 days')`)
	db.Do(t, `UPDATE outbox.task SET attempted_at = now() + CASE task_id WHEN 9003 THEN 1 ELSE 0 END * interval '1 minute'
		WHERE attempt > 0 AND task_id <> 9004`)
	release := db.Hold(t, `SELECT FROM outbox.task WHERE task_id = 9004 FOR UPDATE`)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	retrying := admin.Filter{Type: "A", State: admin.StateRetrying}
	r, err := c.RunNow(t.Context(), retrying, admin.Bulk{})
	if len(r.IDs) != 2004 || !slices.Equal(r.Running, []int64{9004}) || err != nil {
		t.Errorf("%d tasks are due, %v run, %v", len(r.IDs), r.Running, err)
	}
	release()
	db.Want(t, "9001 9002 9004", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.task
		WHERE state = 'scheduled'`)
	db.Want(t, "1000 1000 4", `SELECT string_agg(count::text, ' ' ORDER BY entry_id) FROM outbox.audit
		WHERE action = 'run_now' AND target = 'tasks: type A, state retrying'`)
}

// Each task has its result, at its place, and the entry of the audit log names those that changed.
func TestCancelAndRunNowSayWhatBecameOfEachTask(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, run_at) OVERRIDING SYSTEM VALUE
			SELECT id, 'A', now() + wait * interval '1 hour'
			  FROM (VALUES (11, 0), (12, 1), (13, 1), (14, 0)) AS task (id, wait);
		UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(),
			lease_token = gen_random_uuid(), attempted_at = now() WHERE task_id = 14`)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	due, err := c.RunNow(t.Context(), admin.Filter{IDs: []int64{11, 13, 99, 13}}, admin.Bulk{})
	if err != nil || !slices.Equal(due.IDs, []int64{13}) || due.Running != nil {
		t.Errorf("RunNow: %+v, %v", due, err)
	}
	canceled, err := c.Cancel(t.Context(), admin.Filter{IDs: []int64{99, 14, 12, 12}}, admin.Bulk{})
	if err != nil || !slices.Equal(canceled.IDs, []int64{12}) || !slices.Equal(canceled.Running, []int64{14}) {
		t.Errorf("Cancel: %+v, %v", canceled, err)
	}
	const entries = `SELECT string_agg(action || ': ' || target, '; ' ORDER BY entry_id) FROM outbox.audit`
	if got := db.Text(t, entries); got != "run_now: task 13; cancel: tasks 12, 14" {
		t.Errorf("the audit log has %s", got)
	}
}
