package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// timetable notes, by the database's clock, how late after their run_at tasks started.
type timetable struct {
	clock *database
	late  chan time.Duration
}

func newTimetable(t testing.TB, db *database) timetable {
	clock := open(t, db.URL) // a connection is at hand, whatever the handler's own is busy with
	clock.SetMaxIdleConns(50)
	return timetable{clock, make(chan time.Duration, 1000)}
}

func (tt timetable) start(ctx context.Context, runAt time.Time) error {
	var us int64
	err := tt.clock.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp() - $1::timestamptz)
		* 1000000)::bigint`, runAt).Scan(&us)
	tt.late <- time.Duration(us) * time.Microsecond
	return err
}

// punctual checks that n tasks start, and none before its time; with OUTBOX_TEST_TIMING=1, that
// half of a round start within 50 ms of it.
func (tt timetable) punctual(t testing.TB, n int, round func()) {
	t.Helper()
	quick(t, .5, 50*time.Millisecond, func() (all delays) {
		round()
		for range n {
			select {
			case late := <-tt.late:
				if all = append(all, late); late < 0 {
					t.Errorf("a task started %v before its time", -late)
				}
			case <-time.After(45 * time.Second): // less than the poll interval
				t.Fatal("a task that was due did not start within 45 s")
			}
		}
		return all
	})
}

// Another process schedules tasks of twenty types while the relay sleeps. With NOTIFY it learns of
// them at once, although it would poll only once a minute; without it by a poll, as long as they
// lie further ahead.
func TestScheduledTasksStartAtTheirTimeWithoutAPoll(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for name, config := range map[string]relay.Config{
		"notified": {PollInterval: time.Minute, ListenDSN: "yes"},
		"polling":  {PollInterval: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			db, reg := newDatabase(t), handlers.New()
			tt := newTimetable(t, db)
			const types = 20
			for i := range types {
				registerTx(reg, outbox.NewTaskType[payload](fmt.Sprint("TYPE", i)),
					func(ctx context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
						return tt.start(ctx, task.RunAt)
					})
			}
			if config.ListenDSN != "" {
				config.ListenDSN = db.URL
			}
			run(t, open(t, db.URL), reg, config)
			if config.ListenDSN != "" {
				listening(t, db)
			}
			tt.punctual(t, types, func() {
				db.Do(t, `INSERT INTO outbox.task (task_type, run_at)
					SELECT 'TYPE' || n, clock_timestamp() + (300 + n * 40) * interval '1 ms'
					FROM generate_series(0, $1::int - 1) n`, types)
				if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`); n == 0 {
					t.Error("no task is scheduled")
				}
			})
		})
	}
}

// A retry is as punctual as what was scheduled by the app. The relay would poll only once a minute.
func TestRetriesStartAtTheirTimeWithoutAPoll(t *testing.T) {
	needs.Long(t)
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			tt := newTimetable(t, db)
			each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
				if task.Attempt == 1 {
					return errAlways
				}
				return tt.start(ctx, task.RunAt)
			}, handlers.Backoff(constant(400*time.Millisecond)), handlers.NoJitter())
			run(t, db, reg, relay.Config{PollInterval: time.Minute})
			tasks := slices.Repeat([]outbox.TaskSpec{{Type: kind, Payload: payload{}}}, 8)
			tt.punctual(t, 8, func() { relaytest.EnqueueAll(db.DB, tasks...) })
		})
	}
}

func TestAnIdleRelayFiresWithoutAPoll(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	tt := newTimetable(t, db)
	registerTx(reg, relaytest.TypeFired, func(ctx context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
		return tt.start(ctx, task.RunAt)
	})
	config := scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(300 * time.Millisecond)})
	config.PollInterval = time.Minute
	run(t, db, reg, config)
	tt.punctual(t, 6, func() {})
}

// F51: the backoff counts from the failure, not from the start of the transaction.
func TestTheBackoffCountsFromTheFailure(t *testing.T) {
	needs.CI(t)
	for _, kind := range []string{"TX", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			clock := open(t, db.URL)
			var failed time.Time
			each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
				<-time.After(1500 * time.Millisecond) // slow work
				if err := clock.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&failed); err != nil {
					t.Error(err)
				}
				return errAlways
			}, handlers.Backoff(constant(time.Minute)), handlers.NoJitter())
			db.Enqueue(t, kind, 1)
			once(t, db, reg, relay.Config{})
			db.want(t, true, "the retry is due a minute after the failure", `SELECT run_at - interval '1 minute'
				BETWEEN $1 AND clock_timestamp() FROM outbox.task WHERE attempt = 1`, failed)
		})
	}
}
