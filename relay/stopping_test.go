package relay_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/relay"
)

// After Ctrl-C the log has the number of tasks that a relay waits for, and later the tasks that it stopped.
func TestARelayThatStopsSaysWhatItWaitsForAndInTheEndWhichTasks(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	var started sync.WaitGroup
	release := make(chan struct{})
	reg := work(func(ctx context.Context, _ int) error {
		started.Done()
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	start := func(drain time.Duration) (stop context.CancelFunc, stopped <-chan error) {
		started.Add(3)
		for name, n := range map[string]int{"TX": 1, "BATCH": 3, "LEASED": 1} {
			db.Enqueue(t, name, n)
		}
		r, err := relay.New(open(t, db.URL).DB, reg, relay.Config{Workers: 4, DrainTimeout: drain,
			PollInterval: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		started.Wait()
		return cancel, done
	}
	const says = `outbox: relay stopping; it waits for the tasks that run`

	stop, stopped := start(-1)
	log.Want(t, 0, says)
	stop()
	eventually(t, 20*time.Second, "it says what it waits for", func() bool { return log.Count(says) == 1 })
	log.Want(t, 1, `tasks="map[BATCH:3 LEASED:1 TX:1]"`)
	log.Want(t, 0, "outbox: relay stopped")
	close(release)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	log.Want(t, 0, "the drain timeout has passed")

	release = make(chan struct{})
	stop, stopped = start(10 * time.Millisecond)
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	log.Want(t, 2, says)
	log.Want(t, 1, "the drain timeout has passed")
	log.Want(t, 1, db.Text(t, `SELECT 'task_ids="map[' || string_agg(task_type || ':[' || ids || ']', ' '
		ORDER BY task_type) || ']"'
		FROM (SELECT task_type, string_agg(task_id::text, ' ' ORDER BY task_id) AS ids FROM outbox.task
		GROUP BY task_type) t`))

	db.Do(t, `DELETE FROM outbox.task`)
	idle := run(t, db, all(), relay.Config{})
	eventually(t, 20*time.Second, "it has started", func() bool { return idle.Log.Count("outbox: relay started") == 1 })
	idle.Stop()
	idle.Log.Want(t, 0, "relay stopping")
	idle.Log.Want(t, 1, "outbox: relay stopped")
}
