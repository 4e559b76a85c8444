package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
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
		return handlers.RetryAfter(time.Hour, errors.New("busy"))
	})
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
		s := newScene(t, db)
		var relayID string
		for name, c := range map[string]struct {
			id   int64
			want admin.Task // without times and ids of relays
			run  *admin.Run
		}{
			"ready":     {s.ready, admin.Task{Type: "NOBODYS", State: admin.Ready, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second}, nil},
			"scheduled": {s.scheduled, admin.Task{Type: "LATER", State: admin.Scheduled, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second}, nil},
			"retried":   {s.retried, admin.Task{Type: "FAILS", State: admin.Scheduled, Attempt: 1, LastError: "retry after 1h0m0s: busy"}, nil},
			"leased": {s.leased, admin.Task{Type: "LEASED", State: admin.Leased, Priority: 3, Attempt: 1, MaxAttempts: 4, Timeout: 90 * time.Second},
				&admin.Run{TaskIDs: []int64{s.leased}, Type: "LEASED"}},
			"waiting": {s.waiting, admin.Task{Type: "ORDERED", State: admin.Waiting, Priority: 3, MaxAttempts: 4, Timeout: 90 * time.Second}, nil},
			"dead": {s.dead, admin.Task{Type: "DIES", State: admin.Dead, Priority: 3, Attempt: 1, MaxAttempts: 4, Timeout: 90 * time.Second, Reason: admin.ReasonHandler,
				LastError: "dead: boom"}, nil},
			"finished":      {s.finished, admin.Task{Type: "KEPT", State: admin.Finished, Priority: 3, Attempt: 1, LastError: "discard: gone"}, nil},
			"in a Tx claim": {s.tx, admin.Task{Type: "TX", State: admin.Ready}, &admin.Run{TaskIDs: []int64{s.tx}, Type: "TX"}},
			"in a batch":    {s.batch[1], admin.Task{Type: "BATCH", State: admin.Ready}, &admin.Run{TaskIDs: s.batch, Type: "BATCH"}},
		} {
			got, err := client(t, db.DB).Task(t.Context(), c.id)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got.TaskID != c.id || got.CreatedAt.IsZero() || got.RunAt.IsZero() || got.AttemptedAt.IsZero() != (got.Attempt == 0) ||
				got.EndedAt.IsZero() != (got.State != admin.Dead && got.State != admin.Finished) || got.KeepUntil.IsZero() != (got.State != admin.Finished) || (got.RelayID == "") != (got.State != admin.Leased) ||
				got.LeasedUntil.IsZero() != (got.State != admin.Leased) {
				t.Errorf("%s: %+v", name, got)
			}
			if c.run == nil && len(got.Runs) > 0 || c.run != nil && len(got.Runs) != 1 {
				t.Errorf("%s: runs %+v, want %+v", name, got.Runs, c.run)
			} else if c.run != nil {
				r := got.Runs[0]
				if !slices.Equal(r.TaskIDs, c.run.TaskIDs) || r.Type != c.run.Type || r.Lost || r.StartedAt.IsZero() || relayID != "" && r.RelayID != relayID {
					t.Errorf("%s: run %+v, want %+v", name, r, c.run)
				}
				relayID = r.RelayID
			}
			if got.LastError != c.want.LastError || got.Type != c.want.Type || got.State != c.want.State || got.Priority != c.want.Priority || got.Attempt != c.want.Attempt ||
				got.MaxAttempts != c.want.MaxAttempts || got.Timeout != c.want.Timeout || got.Reason != c.want.Reason {
				t.Errorf("%s: got %+v, want %+v", name, got, c.want)
			}
		}
		for _, id := range []int64{0, -1, 1 << 60} {
			if _, err := client(t, db.DB).Task(t.Context(), id); !errors.Is(err, admin.ErrNotFound) {
				t.Errorf("%d: %v, want ErrNotFound", id, err)
			}
			if _, err := client(t, db.DB).Secrets(t.Context(), id); !errors.Is(err, admin.ErrNotFound) {
				t.Errorf("%d: %v, want ErrNotFound", id, err)
			}
		}
		for name, c := range map[string]struct {
			id   int64
			want admin.Secrets
		}{
			"ready":     {s.ready, admin.Secrets{Payload: []byte(`{"N": 1}`), Headers: []byte(`{"trace": "h"}`), UniqueKey: "u1"}},
			"retried":   {s.retried, admin.Secrets{Payload: []byte(`{"N": 7}`)}},
			"leased":    {s.leased, admin.Secrets{Payload: []byte(`{"N": 3}`), Headers: []byte(`{"trace": "h"}`)}},
			"waiting":   {s.waiting, admin.Secrets{Payload: []byte(`{"N": 8}`), Headers: []byte(`{"trace": "h"}`), OrderingKey: "o8"}},
			"dead":      {s.dead, admin.Secrets{Payload: []byte(`{"N": 5}`), Headers: []byte(`{"trace": "h"}`), UniqueKey: "u5", OrderingKey: "o5"}},
			"finished":  {s.finished, admin.Secrets{Payload: []byte(`{"N": 6}`), Headers: []byte(`{"trace": "h"}`)}},
			"scheduled": {s.scheduled, admin.Secrets{Payload: []byte(`{"N": 2}`), Headers: []byte(`{"trace": "h"}`), UniqueKey: "u2"}},
		} {
			got, err := client(t, db.DB).Secrets(t.Context(), c.id)
			if err != nil || string(got.Payload) != string(c.want.Payload) || string(got.Headers) != string(c.want.Headers) || (got.Headers == nil) != (c.want.Headers == nil) ||
				got.UniqueKey != c.want.UniqueKey || got.OrderingKey != c.want.OrderingKey {
				t.Errorf("%s: got %+v %v, want %+v", name, got, err, c.want)
			}
		}
		for state, want := range map[admin.State]struct {
			taskType string
			ids      []int64
		}{
			admin.Ready: {"BATCH", s.batch}, admin.Scheduled: {"FAILS", []int64{s.retried}}, admin.Leased: {"LEASED", []int64{s.leased}},
			admin.Waiting: {"ORDERED", []int64{s.waiting}}, admin.Dead: {"", []int64{s.dead}}, admin.Finished: {"", []int64{s.finished}},
		} {
			tasks, next, err := client(t, db.DB).Tasks(t.Context(), want.taskType, state, admin.Page{})
			if err != nil || !slices.Equal(ids(tasks), want.ids) || next != "" {
				t.Errorf("%s: got %+v %q %v, want %v", state, tasks, next, err, want.ids)
				continue
			}
			one, err := client(t, db.DB).Task(t.Context(), want.ids[0])
			one.Runs = nil
			if listed := tasks[0]; err != nil || !same(listed, one) {
				t.Errorf("%s: the list has %+v, Get %+v, %v", state, listed, one, err)
			}
		}
	})
}

func same(a, b admin.Task) bool {
	for _, p := range [][2]*time.Time{{&a.CreatedAt, &b.CreatedAt}, {&a.RunAt, &b.RunAt}, {&a.AttemptedAt, &b.AttemptedAt}, {&a.EndedAt, &b.EndedAt}, {&a.LeasedUntil, &b.LeasedUntil}, {&a.KeepUntil, &b.KeepUntil}} {
		if !p[0].Equal(*p[1]) {
			return false
		}
		*p[0], *p[1] = time.Time{}, time.Time{}
	}
	a.Runs, b.Runs = nil, nil
	return a.TaskID == b.TaskID && a.Type == b.Type && a.State == b.State && a.Attempt == b.Attempt && a.MaxAttempts == b.MaxAttempts && a.Reason == b.Reason &&
		a.LastError == b.LastError && a.Timeout == b.Timeout && a.RelayID == b.RelayID && a.Priority == b.Priority && a.Iterations == b.Iterations
}
