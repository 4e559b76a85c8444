package relay_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// taker is a relay that takes leases over and has no handler for what it takes.
func taker(t *testing.T, db *database) *running {
	t.Helper()
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[payload]("NONE"), txEffect)
	return run(t, db, reg, relay.Config{Workers: 1})
}

// notSuspects lets the taken-over tasks run side by side.
func (db *database) notSuspects(t *testing.T) {
	db.exec(t, `UPDATE outbox.task SET relay_id = NULL WHERE state = 'ready'`)
}

// What the stale holder of a lease does, by the task's payload.
var staleEnds = []func(ctx context.Context, task *outbox.Task[payload]) error{
	leasedEffect,
	func(context.Context, *outbox.Task[payload]) error { return nil },
	func(context.Context, *outbox.Task[payload]) error { return errors.New("stale") },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Dead(errors.New("stale")) },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Snooze(time.Hour) },
}

// holder is a Leased handler: it finishes half of the tasks and keeps the others until release is closed.
func holder(held *atomic.Int32, release chan struct{}) *handlers.Registry {
	return leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if task.Payload.N/len(staleEnds)%2 == 1 {
			held.Add(1)
			<-release
		}
		return leasedEffect(ctx, task)
	})
}

const tokens = `SELECT json_agg(t ORDER BY task_id) FROM outbox.task t`

// F6, F7, I4: the relay that lost its leases still runs its handlers, while another one has run, or runs, the tasks.
func testStaleHolder(t *testing.T) {
	db := newDatabase(t)
	const tasks = 20
	db.enqueue(t, "LEASED", tasks)
	var begun, completed atomic.Int32
	end := make(chan struct{})
	stale := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun.Add(1)
		<-end
		err := staleEnds[task.Payload.N%len(staleEnds)](ctx, task)
		if errors.Is(err, outbox.ErrLeaseLost) {
			completed.Add(1)
		}
		return err
	}), relay.Config{Workers: tasks, PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "all tasks are begun", func() bool { return begun.Load() == tasks })
	taker(t, db)
	eventually(t, 30*time.Second, "the leases are taken over", func() bool {
		db.exec(t, `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 second'
			WHERE relay_id IN (SELECT relay_id FROM outbox.task WHERE state = 'leased')`)
		return db.int(t, `SELECT count(*) FROM outbox.task WHERE state = 'leased'`) == 0
	})
	db.notSuspects(t)
	var held atomic.Int32
	release := make(chan struct{})
	run(t, db, holder(&held, release), relay.Config{Workers: tasks, PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "another relay has run half of them and runs the others", func() bool {
		return held.Load() == tasks/2 && db.int(t, `SELECT count(*) FROM outbox.task`) == tasks/2
	})
	before := db.text(t, tokens)
	close(end)
	stale.stop()
	if after := db.text(t, tokens); after != before {
		t.Errorf("the stale holder changed tasks of another:\n%s\n%s", before, after)
	}
	if completed.Load() != tasks/int32(len(staleEnds)) {
		t.Errorf("%d stale completions got ErrLeaseLost, want %d", completed.Load(), tasks/len(staleEnds))
	}
	close(release)
	db.emptied(t, 10*time.Second)
	db.onceEach(t, tasks)
	if n := db.int(t, `SELECT count(*) FROM effect WHERE attempt <> 2`); n != 0 {
		t.Errorf("%d effects are not of the second attempt", n)
	}
}

// A relay that has just started, as after an outage of the database, leaves everybody the time to renew.
func testNothingIsTakenOverEarly(t *testing.T) {
	db := newDatabase(t)
	db.exec(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('00000000-0000-4000-8000-000000000000', 'h', 1, now() - interval '1 hour', '{}')`)
	db.exec(t, `INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token, leased_until) VALUES
		('LEASED', 'leased', 1, '00000000-0000-4000-8000-000000000000', '00000000-0000-4000-8000-000000000001', NULL),
		('LEASED', 'leased', 1, '00000000-0000-4000-8000-000000000000', '00000000-0000-4000-8000-000000000002', now() - interval '1 hour')`)
	run(t, db, leased(leasedEffect), relay.Config{PollInterval: 50 * time.Millisecond})
	db.emptied(t, 30*time.Second)
	var first, last float64
	if err := db.QueryRow(`SELECT min(d), max(d) FROM (SELECT extract(epoch FROM at - started_at) AS d FROM effect, outbox.relay WHERE pid <> 1) s`).Scan(&first, &last); err != nil {
		t.Fatal(err)
	}
	if first < 9.95 || last > 15 {
		t.Errorf("the tasks of a dead relay ran %.2f s and %.2f s after the first heartbeat, want 10 s to 15 s", first, last)
	}
	db.onceEach(t, 2)
}

// F25.
func testTakeoverIsInTime(t *testing.T) {
	db := newGatedDatabase(t)
	const tasks = 9
	db.enqueue(t, "LEASED", tasks)
	p := startProcess(t, db, "gated", 10)
	eventually(t, 20*time.Second, "the relay runs them", func() bool { return db.int(t, `SELECT count(*) FROM start`) == tasks })
	run(t, db, leased(leasedEffect), relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "another relay is there", func() bool { return db.int(t, `SELECT count(*) FROM outbox.relay`) == 2 })
	p.kill()
	killed := db.text(t, `SELECT clock_timestamp()`)
	db.emptied(t, 40*time.Second)
	db.onceEach(t, tasks)
	var first float64
	if err := db.QueryRow(`SELECT extract(epoch FROM min(at) - $1::timestamptz) FROM effect`, killed).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if first > 15 {
		t.Errorf("the first of a killed relay's tasks ran again after %.1f s, want 15 s at most", first)
	}
	if n := db.int(t, `SELECT count(*) FROM effect WHERE attempt <> 2`); n != 0 {
		t.Errorf("%d of the runs that died were not counted as attempts", n)
	}
}

// The heartbeat cannot get through for as long as leases last.
func testLostHeartbeat(t *testing.T) {
	db := newDatabase(t)
	begun := make(chan struct{}, 10)
	causes := make(chan error, 10)
	var first atomic.Bool
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if !first.CompareAndSwap(false, true) {
			return leasedEffect(ctx, task)
		}
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	db.enqueue(t, "LEASED", 1)
	<-begun
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`LOCK TABLE outbox.relay IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	locked := time.Now()
	select {
	case cause := <-causes:
		if !errors.Is(cause, outbox.ErrLeaseLost) {
			t.Errorf("the handler's context ended by %v, want ErrLeaseLost", cause)
		}
		if after := time.Since(locked); after < 6*time.Second || after > 13*time.Second {
			t.Errorf("it ended %v after the last heartbeat at most 3 s before; leases last 10 s", after)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the handler's context did not end")
	}
	eventually(t, 10*time.Second, "the task is handed back without an attempt", func() bool { return db.taskState(t) == "ready 0" })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	db.emptied(t, 15*time.Second)
	db.onceEach(t, 1)
	if got := db.int(t, `SELECT attempt FROM effect`); got != 1 {
		t.Errorf("done in attempt %d, want 1", got)
	}
}

// A lease that has run out is ended even where the relay lives, as it may have lost sight of the task.
func testExpiredLease(t *testing.T) {
	db := newDatabase(t)
	var runs atomic.Int32
	stale := make(chan error, 1)
	end := make(chan struct{})
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if runs.Add(1) > 1 {
			return leasedEffect(ctx, task)
		}
		<-end
		err := leasedEffect(ctx, task)
		stale <- err
		return err
	}), relay.Config{PollInterval: 50 * time.Millisecond})
	db.enqueue(t, "LEASED", 1)
	eventually(t, 10*time.Second, "it runs", func() bool { return runs.Load() == 1 })
	db.exec(t, `UPDATE outbox.task SET leased_until = clock_timestamp()`)
	db.emptied(t, 30*time.Second)
	close(end)
	if err := <-stale; !errors.Is(err, outbox.ErrLeaseLost) {
		t.Errorf("the first run's Complete returned %v, want ErrLeaseLost", err)
	}
	db.onceEach(t, 1)
	if got := db.int(t, `SELECT attempt FROM effect`); got != 2 {
		t.Errorf("done in attempt %d, want 2", got)
	}
}

// A handler that does not return is left behind, its failure recorded, and nothing of it counts later.
func testAbandonedHandler(t *testing.T) {
	db := newDatabase(t)
	var first atomic.Bool
	stale, end := make(chan error, 1), make(chan struct{})
	r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if !first.CompareAndSwap(false, true) {
			return leasedEffect(ctx, task)
		}
		<-end
		err := leasedEffect(context.WithoutCancel(ctx), task)
		stale <- err
		return nil
	}, handlers.Timeout(50*time.Millisecond), handlers.Backoff(constant(time.Hour))), relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	db.enqueue(t, "LEASED", 1)
	eventually(t, 20*time.Second, "its failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
	if r.log.count("was abandoned") != 1 {
		t.Error("the log does not tell of the abandoned handler")
	}
	db.enqueue(t, "LEASED", 1) // its worker is free again
	eventually(t, 10*time.Second, "another task is done", func() bool { return db.int(t, `SELECT count(*) FROM effect`) == 1 })
	close(end)
	if err := <-stale; !errors.Is(err, outbox.ErrLeaseLost) {
		t.Errorf("the abandoned handler's Complete returned %v, want ErrLeaseLost", err)
	}
	if got := db.taskState(t); got != "scheduled 1" {
		t.Errorf("afterwards the task is %s", got)
	}
}

// together runs tests at the same time, whatever -parallel says: they mostly wait.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// What mostly waits for a heartbeat, a timeout or a poll, and measures how long: all at once, beside nothing else.
func TestGuaranteesInTime(t *testing.T) {
	tests := map[string]func(*testing.T){
		"a stale holder changes nothing":                                        testStaleHolder,
		"nothing is taken over before 10 s of own heartbeats":                   testNothingIsTakenOverEarly,
		"a killed relay's tasks are taken over within 15 s":                     testTakeoverIsInTime,
		"handlers end when heartbeats do not get through":                       testLostHeartbeat,
		"a lease that ran out ends":                                             testExpiredLease,
		"a handler that ignores its context is abandoned and its run a failure": testAbandonedHandler,
	}
	tests["a late heartbeat revives a lease that nobody took"] = testLateHeartbeat
	tests["a lease whose commit succeeds unseen is given back"] = testLeaseCommittedUnseen
	tests["RunOnce takes over the tasks of dead relays"] = testRunOnceTakesOver
	tests["without notifications a poll finds the task"] = testPollFindsTheTask
	tests["timeouts of the role do not stop a relay"] = testTimeoutsOfTheRole
	tests["no interleaving of a holder and a rescuer breaks the rule of the token"] = testEveryInterleaving
	tests["a completion that hangs does not hold up others"] = testHangingCompletion
	for name, test := range freezeTests {
		tests[name] = test
	}
	together(t, tests)
}
