package admin_test

import (
	"context"
	"database/sql"
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
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

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
		retried := admin.Task{Type: "FAILS", State: admin.StateScheduled, Attempt: 1, LastError: "busy"}
		leased := full("LEASED", admin.StateLeased, 1)
		leased.Runs, leased.RelayID = []admin.Run{{TaskIDs: []int64{s.leased}}}, relayID
		dead := full("DIES", admin.StateDead, 1)
		dead.Reason, dead.LastError = outbox.ReasonHandler, "boom"
		finished := full("KEPT", admin.StateFinished, 1)
		finished.LastError = "discard: gone"
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
			admin.StateReady: {"BATCH", s.batch}, admin.StateScheduled: {"FAILS", []int64{s.retried}},
			admin.StateLeased: {"LEASED", []int64{s.leased}}, admin.StateWaiting: {"ORDERED", []int64{s.waiting}},
			admin.StateDead: {"", []int64{s.dead}}, admin.StateFinished: {"", []int64{s.finished}},
		} {
			tasks, next, err := tasksOf(c.Tasks(t.Context(), admin.TaskQuery{Type: want.taskType, State: state}))
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
	ofSecrets := []string{"payload", "headers", "ordering_key", "unique_key", "lease_token"}
	unused := []string{"skip_failed", "unique_until_done", "timeline"}
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
	for i, lacks := range [][]string{{"EndedAt", "KeepUntil", "Reason"}, {"KeepUntil"}, {"Reason"}} {
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
