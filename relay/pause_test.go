package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func pause(t testing.TB, db *database, taskType string) {
	t.Helper()
	if err := relaytest.Admin(t, db.DB).PauseType(context.Background(), taskType); err != nil {
		t.Fatal(err)
	}
}

func resume(t testing.TB, db *database, taskType string) {
	t.Helper()
	if err := relaytest.Admin(t, db.DB).ResumeType(context.Background(), taskType); err != nil {
		t.Fatal(err)
	}
}

// crowd are task types that only one relay has, one for each of its workers. Their handlers wait
// for each other.
type crowd struct {
	types []string
	in    atomic.Int64
	open  chan struct{}
}

func newCrowd(reg *handlers.Registry, name string, workers int) *crowd {
	c := &crowd{open: make(chan struct{})}
	for i := range workers {
		c.types = append(c.types, fmt.Sprint(name, i))
		handlers.Leased(reg, outbox.NewTaskType[payload](c.types[i]), func(context.Context, *outbox.Task[payload]) error {
			c.in.Add(1)
			<-c.open
			return nil
		})
	}
	return c
}

// start enqueues a task of each type, and waits until all have started. As long as they do not end
// they have all workers: what the relay's polls found before has been claimed then, and it has
// polled since.
func (c *crowd) start(t *testing.T, db *database) {
	t.Helper()
	want := c.in.Load() + int64(len(c.types))
	for _, taskType := range c.types {
		db.Enqueue(t, taskType, 1)
	}
	eventually(t, time.Minute, "tasks of other types run", func() bool { return c.in.Load() == want })
}

// goesOn lets the tasks end, and waits until the relay has run more.
func (c *crowd) goesOn(t *testing.T, db *database) {
	t.Helper()
	close(c.open)
	for range 5 {
		c.start(t, db)
	}
}

func TestAPausedTypeDoesNotStartAndAResumptionWakesTheRelay(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	p, other := newProbe(reg, "TX"), newCrowd(reg, "OTHER", 4)
	r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: time.Minute, ListenDSN: db.URL})
	listening(t, db)
	p.measure(t, db, 3, 10*time.Millisecond)
	pause(t, db, "TX")
	other.start(t, db)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', clock_timestamp() + interval '100 ms')`)
	db.Enqueue(t, "TX", 1)
	other.goesOn(t, db)
	select {
	case <-p.started:
		t.Error("a task of a paused type was started")
	case <-time.After(500 * time.Millisecond):
	}
	resume(t, db, "TX") // the relay would poll only once a minute
	for range 2 {
		select {
		case <-p.started:
		case <-time.After(45 * time.Second):
			t.Fatal("a task of a resumed type was not started")
		}
	}
	r.Log.Want(t, 0, "no relay has a handler")
}

// A wake-up that was sent before the pause, or by hand, names a task of a type that is paused by
// now.
func TestATaskThatCommitsAfterAPauseDoesNotStart(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var started atomic.Int64
	handlers.Tx(reg, outbox.NewTaskType[payload]("TX"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		started.Add(1)
		return nil
	})
	handlers.Tx(reg, outbox.NewTaskType[payload]("GROUP"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		started.Add(1)
		return nil
	}, handlers.GroupCommit(10, 0))
	handlers.Batch(reg, outbox.NewTaskType[payload]("BATCH"), 10,
		func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
			started.Add(1)
			return nil
		})
	handlers.Leased(reg, outbox.NewTaskType[payload]("LEASED"), func(context.Context, *outbox.Task[payload]) error {
		started.Add(1)
		return nil
	})
	other := newProbe(reg, "OTHER")
	run(t, db, reg, relay.Config{PollInterval: time.Minute, ListenDSN: db.URL})
	listening(t, db)
	kinds := []string{"TX", "GROUP", "BATCH", "LEASED"}
	for _, taskType := range kinds {
		commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type) VALUES ($1)`, taskType)
		pause(t, db, taskType)
		commit()
		other.measure(t, db, 1, time.Millisecond)
		for range 5 {
			<-time.After(30 * time.Millisecond) // it is idle in some of them
			db.Do(t, `SELECT pg_notify('outbox', concat_ws(' ', priority, task_id, task_type)) FROM outbox.task
				WHERE task_type = $1`, taskType)
		}
		other.measure(t, db, 1, time.Millisecond)
	}
	db.want(t, len(kinds), "the tasks of the paused types", `SELECT count(*) FROM outbox.task WHERE task_type <> 'OTHER'
		AND state = 'ready' AND attempt = 0`)
	if n := started.Load(); n != 0 {
		t.Errorf("%d tasks of paused types were started", n)
	}
}

// A group claims its tasks one after the other, and asks each time. A pause may come from elsewhere, or
// from a handler of the group.
func TestAGroupEndsWhereItsTypeIsPaused(t *testing.T) {
	t.Parallel()
	for name, pauses := range map[string]func(*database, *sql.Tx) error{
		"elsewhere": func(db *database, _ *sql.Tx) error {
			return relaytest.Admin(t, db.DB).PauseType(context.Background(), "TX")
		},
		"by its handler": func(db *database, tx *sql.Tx) error {
			return relaytest.Admin(t, db.DB).In(tx).PauseType(context.Background(), "TX")
		},
	} {
		db := newDatabase(t)
		db.Enqueue(t, "TX", 5)
		db.keyed(t, "TX", 0, outbox.Priority(-1)) // so that the relay knows how little a task takes
		calls := 0
		once(t, db, grouped(100, within, func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if calls++; calls == 3 {
				return pauses(db, tx)
			}
			return nil
		}), relay.Config{Workers: 1})
		if calls != 3 {
			t.Errorf("%s: %d tasks were started, want 3 until the pause", name, calls)
		}
		db.want(t, 3, "the other tasks", `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0
			AND attempted_at IS NULL`)
		db.wantRows(t, 0, `outbox.running`)
		resume(t, db, "TX")
		once(t, db, grouped(100, within, func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil }),
			relay.Config{Workers: 1})
		db.wantRows(t, 0, `outbox.task`)
	}
}
