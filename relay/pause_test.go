package relay_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
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

// An idle relay claims what a wake-up names without a poll, which would leave paused types out.
func TestAWakeUpDoesNotStartATaskOfAPausedType(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	p, other := newProbe(reg, "TX"), newProbe(reg, "OTHER")
	run(t, db, reg, relay.Config{PollInterval: time.Minute, ListenDSN: db.URL})
	listening(t, db)
	pause(t, db, "TX")
	const tasks = 5
	for range tasks {
		db.Do(t, `SELECT setval('outbox.wake', 0)`)
		listening(t, db) // idle again
		db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ('TX')`)
		other.measure(t, db, 1, time.Millisecond)
	}
	select {
	case <-p.started:
		t.Error("a task of a paused type was started")
	default:
	}
	db.want(t, tasks, "the tasks of the paused type", `SELECT count(*) FROM outbox.task WHERE task_type = 'TX' AND attempt = 0`)
}
