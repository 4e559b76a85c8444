package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/timeline"
	"github.com/txoutbox/outbox/relay"
)

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
		if _, err := c.Redrive(t.Context(), admin.DeadFilter{IDs: []int64{id}}, admin.Bulk{}); err != nil {
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
