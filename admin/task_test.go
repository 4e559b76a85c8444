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
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// scene is an outbox with a task in each state, of which those that run go on until the test ends.
type scene struct {
	ready, scheduled, retried, leased, waiting, dead, finished, tx int64
	batch                                                          []int64
	relay                                                          *relaytest.Running
}

type number struct{ N int }

func newScene(t *testing.T, db *database) *scene {
	t.Helper()
	s := &scene{}
	opts := []outbox.Option{outbox.Headers(map[string]string{"trace": "h"}), outbox.Priority(3), outbox.MaxAttempts(4), outbox.Timeout(90 * time.Second)}
	s.scheduled = enqueue(t, db, "LATER", number{2}, append(slices.Clone(opts), outbox.After(time.Hour), outbox.Unique("u2"))...)
	s.leased = enqueue(t, db, "LEASED", number{3}, opts...)
	s.dead = enqueue(t, db, "DIES", number{5}, append(slices.Clone(opts), outbox.Unique("u5"), outbox.OrderedBy("o5"))...)
	s.finished = enqueue(t, db, "KEPT", number{6}, opts...)
	s.retried = enqueue(t, db, "FAILS", number{7})
	enqueue(t, db, "ORDERED", number{8}, outbox.OrderedBy("o8"), outbox.After(time.Hour))
	s.waiting = enqueue(t, db, "ORDERED", number{8}, append(slices.Clone(opts), outbox.OrderedBy("o8"))...)
	s.tx = enqueue(t, db, "TX", number{9})
	for n := range 3 {
		s.batch = append(s.batch, enqueue(t, db, "BATCH", number{10 + n}))
	}
	s.ready = enqueue(t, db, "NOBODYS", number{1}, append(slices.Clone(opts), outbox.Unique("u1"))...)

	reg, release := handlers.New(), make(chan struct{})
	block := func() error { <-release; return nil }
	handlers.Leased(reg, outbox.NewTaskType[number]("LEASED"), func(context.Context, *outbox.Task[number]) error { return block() })
	handlers.Tx(reg, outbox.NewTaskType[number]("TX"), func(context.Context, *sql.Tx, *outbox.Task[number]) error { return block() })
	handlers.Batch(reg, outbox.NewTaskType[number]("BATCH"), 10, func(context.Context, outbox.Tx, []*outbox.Task[number]) error { return block() })
	handlers.Leased(reg, outbox.NewTaskType[number]("DIES"), func(context.Context, *outbox.Task[number]) error { return handlers.Dead(errors.New("boom")) })
	handlers.Tx(reg, outbox.NewTaskType[number]("FAILS"), func(context.Context, *sql.Tx, *outbox.Task[number]) error {
		return errors.New("busy")
	}, handlers.Backoff(relaytest.Constant(time.Hour)))
	handlers.Leased(reg, outbox.NewTaskType[number]("KEPT"), func(context.Context, *outbox.Task[number]) error { return handlers.Discard(errors.New("gone")) },
		handlers.Keep(time.Hour))
	handlers.Tx(reg, outbox.NewTaskType[number]("ORDERED"), func(context.Context, *sql.Tx, *outbox.Task[number]) error { return nil })
	s.relay = relaytest.Run(t, db.DB, reg, relay.Config{Workers: 20})
	t.Cleanup(func() { close(release) })
	relaytest.Eventually(t, 20*time.Second, "all has begun", func() bool {
		return db.Int(t, `SELECT count(*) FROM (VALUES
			((SELECT count(*) FROM outbox.task WHERE state = 'leased' AND task_type = 'LEASED') = 1),
			((SELECT count(*) FROM outbox.task WHERE state = 'leased') = 1),
			((SELECT count(*) FROM outbox.running) = 2),
			((SELECT count(*) FROM outbox.dead_task) = 1),
			((SELECT count(*) FROM outbox.done_task) = 1),
			((SELECT count(*) FROM outbox.task WHERE attempt = 1 AND state = 'scheduled' AND task_type = 'FAILS') = 1),
			((SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND task_type = 'ORDERED') = 1)) AS v (holds) WHERE holds`) == 7
	})
	return s
}

func TestATaskIsFoundWhereverItIs(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		s, c := newScene(t, db), client(t, db.DB)
		var relayID string
		if err := db.QueryRow(`SELECT relay_id::text FROM outbox.relay`).Scan(&relayID); err != nil {
			t.Fatal(err)
		}
		payload := func(n int) []byte { return fmt.Appendf(nil, `{"N": %d}`, n) }
		trace := []byte(`{"trace": "h"}`)
		for name, of := range map[string]struct {
			id      int64
			want    admin.Task // without id, times and relays; its runs have TaskIDs only
			secrets admin.Secrets
		}{
			"ready": {s.ready, admin.Task{Type: "NOBODYS", State: admin.Ready, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second},
				admin.Secrets{Payload: payload(1), Headers: trace, UniqueKey: "u1"}},
			"scheduled": {s.scheduled, admin.Task{Type: "LATER", State: admin.Scheduled, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second},
				admin.Secrets{Payload: payload(2), Headers: trace, UniqueKey: "u2"}},
			"retried": {s.retried, admin.Task{Type: "FAILS", State: admin.Scheduled, Attempt: 1, LastError: "busy"}, admin.Secrets{Payload: payload(7)}},
			"leased": {s.leased, admin.Task{Type: "LEASED", State: admin.Leased, Priority: 3, Attempt: 1, MaxAttempts: 4, Timeout: 90 * time.Second, Runs: []admin.Run{{TaskIDs: []int64{s.leased}}}},
				admin.Secrets{Payload: payload(3), Headers: trace}},
			"waiting": {s.waiting, admin.Task{Type: "ORDERED", State: admin.Waiting, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second},
				admin.Secrets{Payload: payload(8), Headers: trace, OrderingKey: "o8"}},
			"dead": {s.dead, admin.Task{Type: "DIES", State: admin.Dead, Priority: 3, Attempt: 1, MaxAttempts: 4, Timeout: 90 * time.Second, Reason: admin.ReasonHandler, LastError: "boom"},
				admin.Secrets{Payload: payload(5), Headers: trace, UniqueKey: "u5", OrderingKey: "o5"}},
			"finished":      {s.finished, admin.Task{Type: "KEPT", State: admin.Finished, MaxAttempts: 4, Timeout: 90 * time.Second, Priority: 3, Attempt: 1, LastError: "discard: gone"}, admin.Secrets{Payload: payload(6), Headers: trace}},
			"in a Tx claim": {s.tx, admin.Task{Type: "TX", State: admin.Ready, Runs: []admin.Run{{TaskIDs: []int64{s.tx}}}}, admin.Secrets{Payload: payload(9)}},
			"in a batch":    {s.batch[1], admin.Task{Type: "BATCH", State: admin.Ready, Runs: []admin.Run{{TaskIDs: s.batch}}}, admin.Secrets{Payload: payload(11)}},
		} {
			got, err := c.Task(t.Context(), of.id)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got.TaskID != of.id || got.CreatedAt.IsZero() || got.RunAt.IsZero() || got.AttemptedAt.IsZero() != (got.Attempt == 0) ||
				got.EndedAt.IsZero() != (got.State != admin.Dead && got.State != admin.Finished) || got.KeepUntil.IsZero() != (got.State != admin.Finished) || (got.RelayID == "") != (got.State != admin.Leased) ||
				got.LeasedUntil.IsZero() != (got.State != admin.Leased) || !strings.HasSuffix(got.Key, fmt.Sprintf("-8000-%012x", of.id)) {
				t.Errorf("%s: %+v", name, got)
			}
			for i, r := range got.Runs {
				if r.Type != got.Type || r.Lost || r.StartedAt.IsZero() || r.RelayID != relayID {
					t.Errorf("%s: run %+v", name, r)
				}
				got.Runs[i] = admin.Run{TaskIDs: r.TaskIDs}
			}
			if ended := got.State == admin.Dead || got.State == admin.Finished; (len(got.Timeline) > 0) != (ended || got.LastError != "") {
				t.Errorf("%s: timeline %+v", name, got.Timeline)
			}
			got.TaskID, got.Key, got.RelayID, got.Timeline = 0, "", "", nil
			got.CreatedAt, got.RunAt, got.AttemptedAt, got.EndedAt, got.KeepUntil, got.LeasedUntil = time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}, time.Time{}
			if len(got.Runs) == 0 {
				got.Runs = nil
			}
			if !reflect.DeepEqual(got, of.want) {
				t.Errorf("%s: got %+v, want %+v", name, got, of.want)
			}
			if secrets, err := c.Secrets(t.Context(), of.id); err != nil || !reflect.DeepEqual(secrets, of.secrets) {
				t.Errorf("%s: got %+v %v, want %+v", name, secrets, err, of.secrets)
			}
		}
		for _, id := range []int64{0, -1, 1 << 60} {
			_, err1 := c.Task(t.Context(), id)
			_, err2 := c.Secrets(t.Context(), id)
			if !errors.Is(err1, admin.ErrNotFound) || !errors.Is(err2, admin.ErrNotFound) {
				t.Errorf("%d: %v, %v, want ErrNotFound", id, err1, err2)
			}
		}
		for state, want := range map[admin.State]struct {
			taskType string
			ids      []int64
		}{
			admin.Ready: {"BATCH", s.batch}, admin.Scheduled: {"FAILS", []int64{s.retried}}, admin.Leased: {"LEASED", []int64{s.leased}},
			admin.Waiting: {"ORDERED", []int64{s.waiting}}, admin.Dead: {"", []int64{s.dead}}, admin.Finished: {"", []int64{s.finished}},
		} {
			tasks, next, err := c.Tasks(t.Context(), want.taskType, state, admin.Page{})
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
