package moves

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// onRedis is a client and an inspector of asynq on a Redis in memory, and a server that sends as it is told.
func onRedis(t *testing.T, send func(context.Context, int64, string) error) (*asynq.Client, *asynq.Inspector) {
	t.Helper()
	redis := asynq.RedisClientOpt{Addr: miniredis.RunT(t).Addr()}
	client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), inspector.Close()); err != nil {
			t.Error(err)
		}
	})
	mux := asynq.NewServeMux()
	handleOfAsynq(mux, send)
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency: 2, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return client, inspector
}

// asynqStates are how many tasks of the default queue are in each state.
func asynqStates(t *testing.T, inspector *asynq.Inspector) string {
	t.Helper()
	q, err := inspector.GetQueueInfo("default")
	if err != nil {
		return err.Error() // before its first task there is no queue
	}
	return fmt.Sprintf("%d pending, %d active, %d scheduled, %d retry", q.Pending, q.Active, q.Scheduled, q.Retry)
}

func reach(t *testing.T, inspector *asynq.Inspector, states string) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, states, func() bool { return asynqStates(t, inspector) == states })
}

// User 1's task waits for its retry, 2's runs, 3's is scheduled, and 4's is pending in the paused queue.
func TestTasksOfAsynqMoveByTheCodeOfThePage(t *testing.T) {
	db := relaytest.Adopt(t, pgtest.Database(t))
	byAsynq, release := newSent(), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	client, inspector := onRedis(t, func(ctx context.Context, userID int64, key string) error {
		switch userID {
		case 1:
			return errors.New("mail server away")
		case 2:
			<-release
		}
		return byAsynq.send(ctx, userID, key)
	})
	t.Cleanup(free)
	ids := map[int64]string{}
	enqueue := func(userID int64, options ...asynq.Option) {
		payload := []byte(`{"user_id": ` + strconv.FormatInt(userID, 10) + `}`)
		task := asynq.NewTaskWithHeaders("send_welcome", payload, map[string]string{"request": "8f14e45f"})
		info, err := client.Enqueue(task, options...)
		if err != nil {
			t.Fatal(err)
		}
		ids[userID] = info.ID
	}
	enqueue(1)
	reach(t, inspector, "0 pending, 0 active, 0 scheduled, 1 retry")
	enqueue(2)
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	enqueue(3, asynq.ProcessAt(at), asynq.MaxRetry(4))
	reach(t, inspector, "0 pending, 1 active, 1 scheduled, 1 retry")
	if err := inspector.PauseQueue("default"); err != nil {
		t.Fatal(err)
	}
	enqueue(4)

	if n, err := moveQueue(t.Context(), inspector, db.DB, "default"); err != nil || n != 3 {
		t.Fatalf("%d tasks are found, want those of 3 users: %v", n, err)
	}
	reach(t, inspector, "0 pending, 1 active, 0 scheduled, 0 retry")
	db.Want(t, "1 scheduled 25, 3 scheduled 5, 4 ready 26", `
		SELECT string_agg(format('%s %s %s', payload->>'user_id', state, max_attempts), ', ' ORDER BY payload->>'user_id')
		  FROM outbox.task WHERE headers->>'request' = '8f14e45f'`)
	db.Want(t, "3", `SELECT payload->>'user_id' FROM outbox.task WHERE run_at = $1`, at)

	byOutbox := newSent()
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "before the others are due", 4)
	enqueue(4, asynq.TaskID(ids[4])) // as if its deletion had failed
	enqueue(3, asynq.TaskID(ids[3]))
	if n, err := moveQueue(t.Context(), inspector, db.DB, "default"); err != nil || n != 2 {
		t.Fatalf("%d tasks are found again, want those of 2 users: %v", n, err)
	}
	free()
	reach(t, inspector, "0 pending, 0 active, 0 scheduled, 0 retry")
	db.Due(t)
	relaytest.Once(t, db.DB, registry(byOutbox), relay.Config{})
	byOutbox.want(t, "at the end", 1, 3, 4)
	byAsynq.want(t, "of asynq", 2)
	if byOutbox.keys[1] != ids[1] || byAsynq.keys[2] != ids[2] {
		t.Errorf("keys are %v and %v, want asynq's %v", byOutbox.keys, byAsynq.keys, ids)
	}
}

func TestAMovedTaskOfAsynqIsAsIfEnqueuedInOutbox(t *testing.T) {
	db := relaytest.Adopt(t, pgtest.Database(t))
	client, inspector := onRedis(t, newSent().send)
	tomorrow := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	if err := enqueueInAsynq(client, tomorrow); err != nil {
		t.Fatal(err)
	}
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error { return enqueueBySQL(t.Context(), tx, tomorrow) })
	if err != nil {
		t.Fatal(err)
	}
	if n, err := moveQueue(t.Context(), inspector, db.DB, "default"); err != nil || n != 1 {
		t.Errorf("%d tasks are moved, want 1: %v", n, err)
	}
	wantTwins(t, db)
}
