package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
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

// crowd are task types that only one relay has, one for each of its workers. Their handlers wait for each other.
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

// start enqueues a task of each type, and waits until all have started. As long as they do not end they have all
// workers: what the relay's polls found before has been claimed then, and it has polled since.
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

// In the middle of a flood, with two relays: what runs ends, nothing new starts, and other types go on.
func TestAPausedTypeIsNotStartedByAnyRelayUntilItIsResumed(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const tasks, workers = 1000, 4
			db := newDatabase(t)
			db.Enqueue(t, kind, tasks)
			var started atomic.Int64
			var crowds []*crowd
			for i := range 2 {
				reg := handlers.New()
				each(reg, kind, func(context.Context, *outbox.Task[payload]) error {
					started.Add(1)
					<-time.After(10 * time.Millisecond)
					return nil
				})
				crowds = append(crowds, newCrowd(reg, fmt.Sprint("OTHER", i, "_"), workers))
				run(t, db, reg, relay.Config{Workers: workers, PollInterval: 100 * time.Millisecond})
			}
			eventually(t, 20*time.Second, "the flood is worked on", func() bool { return started.Load() > 50 })
			pause(t, db, kind)
			for _, c := range crowds {
				c.start(t, db)
			}
			at := started.Load()
			for _, c := range crowds {
				c.goesOn(t, db)
			}
			if n := started.Load(); n != at {
				t.Errorf("%d tasks of the paused type started", n-at)
			}
			if at >= tasks {
				t.Error("nothing was left: the test shows nothing")
			}
			resume(t, db, kind)
			eventually(t, 10*time.Second, "it goes on", func() bool { return started.Load() > at })
			db.Do(t, `DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task WHERE state <> 'leased' FOR UPDATE SKIP LOCKED)`)
		})
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
	if n := r.Log.Count("no relay has a handler"); n != 0 {
		t.Errorf("a paused type was reported as one without a handler: %s", r.Log)
	}
}
