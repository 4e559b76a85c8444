// Package moves has the Go code of the pages in docs/coming-from: the same job in the queue that an
// app leaves and in outbox, and the move of asynq's tasks. Its tests move jobs of the real queues by
// the code and the SQL of these pages.
package moves

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/handlers"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter"
)

type Welcome struct {
	UserID int64 `json:"user_id"`
}

func (Welcome) Kind() string { return "send_welcome" } // River's

type welcomeWorker struct {
	river.WorkerDefaults[Welcome]
	send func(ctx context.Context, userID int64, key string) error
}

func (w *welcomeWorker) Work(ctx context.Context, job *river.Job[Welcome]) error {
	return w.send(ctx, job.Args.UserID, strconv.FormatInt(job.ID, 10))
}

func insertInRiver(ctx context.Context, client *river.Client[pgx.Tx], tx pgx.Tx, tomorrow time.Time) error {
	_, err := client.InsertTx(ctx, tx, Welcome{UserID: 7}, &river.InsertOpts{ScheduledAt: tomorrow, MaxAttempts: 5})
	return err
}

var sendWelcome = outbox.NewTaskType[Welcome]("send_welcome")

func register(reg *handlers.Registry, send func(ctx context.Context, userID int64, key string) error) {
	handlers.Leased(reg, sendWelcome, func(ctx context.Context, task *outbox.Task[Welcome]) error {
		key := task.Key()
		if id := task.Headers["old_id"]; id != "" {
			key = id // a moved job: its earlier attempts have sent this key
		}
		return send(ctx, task.Payload.UserID, key)
	})
}

func enqueueByPgx(ctx context.Context, tx pgx.Tx, tomorrow time.Time) error {
	_, err := sendWelcome.Enqueue(ctx, outboxpgx.Querier(tx), Welcome{UserID: 7},
		outbox.RunAt(tomorrow), outbox.MaxAttempts(5))
	return err
}

func enqueueInAsynq(client *asynq.Client, tomorrow time.Time) error {
	payload, err := json.Marshal(Welcome{UserID: 7})
	if err != nil {
		return err
	}
	_, err = client.Enqueue(asynq.NewTask("send_welcome", payload), asynq.ProcessAt(tomorrow), asynq.MaxRetry(4))
	return err
}

func handleOfAsynq(mux *asynq.ServeMux, send func(ctx context.Context, userID int64, key string) error) {
	mux.HandleFunc("send_welcome", func(ctx context.Context, t *asynq.Task) error {
		var w Welcome
		if err := json.Unmarshal(t.Payload(), &w); err != nil {
			return err
		}
		key, _ := asynq.GetTaskID(ctx)
		return send(ctx, w.UserID, key)
	})
}

func enqueueBySQL(ctx context.Context, tx *sql.Tx, tomorrow time.Time) error {
	_, err := sendWelcome.Enqueue(ctx, tx, Welcome{UserID: 7}, outbox.RunAt(tomorrow), outbox.MaxAttempts(5))
	return err
}

// moveQueue enqueues what waits in a queue of asynq, in one transaction, and then deletes it there.
// It returns how many tasks it found. The queue is paused.
func moveQueue(ctx context.Context, inspector *asynq.Inspector, db *sql.DB, queue string) (int, error) {
	var waiting []*asynq.TaskInfo
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		inspector.ListScheduledTasks, inspector.ListRetryTasks, inspector.ListPendingTasks,
	} {
		tasks, err := list(queue, asynq.PageSize(1000))
		if err != nil {
			return 0, err
		}
		waiting = append(waiting, tasks...)
	}
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for _, t := range waiting {
			options := []outbox.Option{
				outbox.Unique("asynq "+t.ID, outbox.For(24*time.Hour)), // not twice, if the deletion below fails
				outbox.MaxAttempts(t.MaxRetry - t.Retried + 1),
				outbox.Headers(t.Headers), outbox.AddHeaders(map[string]string{"old_id": t.ID}),
			}
			if t.State != asynq.TaskStatePending {
				options = append(options, outbox.RunAt(t.NextProcessAt))
			}
			if _, err := outbox.Enqueue(ctx, tx, t.Type, json.RawMessage(t.Payload), options...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, t := range waiting {
		if err := inspector.DeleteTask(queue, t.ID); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
			return 0, err
		}
	}
	return len(waiting), nil
}

func enqueueInGue(ctx context.Context, client *gue.Client, tx adapter.Tx, tomorrow time.Time) error {
	args, err := json.Marshal(Welcome{UserID: 7})
	if err != nil {
		return err
	}
	return client.EnqueueTx(ctx, &gue.Job{Type: "send_welcome", Args: args, RunAt: tomorrow}, tx)
}

func workMap(send func(ctx context.Context, userID int64, key string) error) gue.WorkMap {
	return gue.WorkMap{"send_welcome": func(ctx context.Context, j *gue.Job) error {
		var w Welcome
		if err := json.Unmarshal(j.Args, &w); err != nil {
			return err
		}
		return send(ctx, w.UserID, j.ID.String())
	}}
}
