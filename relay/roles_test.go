package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// A relay whose role is a member of the workers' and has no other right does all that relays do:
// each of its loops leaves what the owner's leaves, it wakes up, runs each kind, cancels and fires
// schedules.
func TestARelayNeedsNoMoreThanTheRoleOfWorkers(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner := adopt(t, pgtest.Local(t, nil).URL()) // whose roles meet no others
	must(schema.GrantRoles(t.Context(), owner.DB))
	owner.Do(t, `CREATE ROLE relay_app LOGIN PASSWORD 'of the test' IN ROLE outbox_worker;
		CREATE ROLE web_app LOGIN PASSWORD 'of the test' IN ROLE outbox_enqueuer`)
	pool := func(role string) *database { return open(t, as(t, owner.URL, role, "of the test")) }
	worker, web := pool("relay_app"), pool("web_app")
	for _, c := range faultyLoops {
		want, _ := c.try(t, owner, owner, &faulty{}, 0, fault{}, "")
		if got, _ := c.try(t, owner, worker, &faulty{}, 0, fault{}, ""); got != want {
			t.Errorf("%s: a worker's leaves\n%s\nwant\n%s", c.name, got, want)
		}
	}
	for _, job := range upkeep.SharedJobs(time.Hour) {
		log := &records{}
		r, err := relay.New(worker.DB, all(), relay.Config{DeadRetention: time.Hour,
			Logger: slog.New(slog.NewTextHandler(log, nil))})
		must(err)
		l := newLoops(r, job.Name)
		l.done(t, "maintain")
		l.Close()
		log.Want(t, 0, "42501")
	}
	owner.Do(t, emptyAll)

	reg := handlers.New()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
			switch task.Payload.N {
			case 1:
				return errAlways
			case 2:
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}, handlers.Retention(time.Hour), handlers.MaxAttempts(1), handlers.MaxRunning(2), handlers.Rate(1000, time.Second))
	}
	handlers.Leased(reg, outbox.NewTaskType[payload]("EXTENDS"),
		func(ctx context.Context, task *outbox.Task[payload]) error {
			return errors.Join(task.Extend(ctx, time.Minute), task.Complete(ctx, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(ctx, tx, "LATER", task.Payload, outbox.UniquePayload(), outbox.After(time.Hour))
				return err
			}))
		})
	config := relay.Config{ListenDSN: worker.URL, Workers: 10,
		Schedules: []relay.Schedule{{Name: "often", Timing: relay.Every(time.Second),
			Task: outbox.TaskSpec{Type: "EXTENDS", Payload: payload{}}}}}
	r := run(t, worker, reg, config)
	listening(t, owner)
	for _, taskType := range []string{"TX", "BATCH", "LEASED", "EXTENDS"} {
		for n, opts := range [][]outbox.Option{{outbox.OrderedBy("o")}, {outbox.OrderedBy("o")}, {outbox.Unique("u")},
			{outbox.After(100 * time.Millisecond)}} {
			web.keyed(t, taskType, n, opts...)
		}
	}
	eventually(t, 60*time.Second, "all are done or canceled", func() bool {
		owner.Do(t, `SELECT outbox.cancel_task(task_id) FROM outbox.task WHERE payload = '{"N": 2}'`)
		return owner.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type <> 'LATER'`) == 0
	})
	owner.wantText(t, "BATCH, LEASED, TX", `SELECT string_agg(task_type, ', ' ORDER BY task_type) FROM outbox.dead_task`)
	r.Stop()
	for line := range strings.Lines(r.Log.String()) {
		if strings.Contains(line, "permission denied") || strings.Contains(line, "42501") ||
			strings.Contains(line, "no wake-ups") {
			t.Errorf("a worker lacks a right: %s", line)
		}
	}
}
