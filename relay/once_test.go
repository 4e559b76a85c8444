package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestRunOnceRunsAllThatIsDueAndNothingThatIsNot(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	chain := outbox.NewTaskType[payload]("CHAIN")
	registerTx(reg, chain, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if task.Payload.N == 0 {
			return effect(ctx, tx, task.ID, task.Attempt)
		}
		_, err := chain.Enqueue(ctx, tx, payload{N: task.Payload.N - 1})
		return err
	})
	each(reg, "TX", func(context.Context, *outbox.Task[payload]) error {
		return errAlways
	}, handlers.Backoff(constant(time.Hour)))
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('CHAIN', '{"N": 20}')`)
	db.Enqueue(t, "TX", 5)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('CHAIN', now() + interval '1 h')`)
	once(t, db, reg, relay.Config{})
	db.want(t, 1, "effects at the end of a chain of tasks", `SELECT count(*) FROM effect`)
	db.want(t, 5, "tasks failed once", `SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND attempt = 1`)
	db.want(t, 6, "tasks are left", `SELECT count(*) FROM outbox.task`)
}

func TestRunOnceReturnsTheDatabasesError(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 1)
	r, err := relay.New(db.DB, all(), relay.Config{Logger: discard()})
	must(err)
	db.Do(t, `ALTER TABLE outbox.running RENAME TO elsewhere`) // no claim can be journalled
	if err := r.RunOnce(t.Context()); err == nil {
		t.Error("a table is missing, but RunOnce returned nil")
	}
	db.Do(t, `ALTER TABLE outbox.elsewhere RENAME TO running`)
	db.want(t, 1, "tasks are as they were", `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0`)
}

// RunOnce drains as Run does when its context ends, which is no error.
func TestRunOnceReturnsNilWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	db, begun := newDatabase(t), make(chan int64, 10)
	db.Enqueue(t, "TX", 1)
	r, err := relay.New(db.DB, held(begun), relay.Config{Logger: discard(), DrainTimeout: 10 * time.Millisecond})
	must(err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if err := r.RunOnce(ctx); err != nil {
		t.Errorf("RunOnce: %v", err)
	}
	untouched(t, db, "TX", 1)
}

// It waits for nobody who lives, though.
func testRunOnceTakesOver(t *testing.T) {
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 4)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'h', 1, now() - interval '1 min', '{LEASED}'), ($2, 'h', 1, now() + interval '5 minutes',
		'{LEASED}')`, deadRelay, liveRelay)
	db.Do(t, `UPDATE outbox.task SET state = 'leased', attempt = 1, lease_token = gen_random_uuid(), relay_id = CASE
		WHEN task_id % 2 = 0 THEN $1 ELSE $2 END::uuid`, deadRelay, liveRelay)
	once(t, db, all(), relay.Config{}) // a relay that waited for the living one would hang for an hour
	db.Due(t)
	once(t, db, all(), relay.Config{})
	db.want(t, 2, "tasks of the dead relay were done in their second attempt",
		`SELECT count(*) FROM effect WHERE attempt = 2`)
	db.want(t, 2, "tasks of the living relay are as they were", `SELECT count(*) FROM outbox.task WHERE state = 'leased'
		AND attempt = 1`)
}

// What another relay takes over in the middle of the last poll is due, too.
func TestRunOnceRunsWhatIsTakenOverWhileItPolls(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "postgres")
	db.Enqueue(t, "LEASED", 1)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'h', 1, now() - interval '1 min', '{LEASED}')`, deadRelay)
	db.Do(t, `UPDATE outbox.task SET state = 'leased', attempt = 1, lease_token = gen_random_uuid(), relay_id = $1`,
		deadRelay)
	f := &faulty{before: map[string]func(){
		"outbox: find leases of dead relays": sync.OnceFunc(func() {
			db.Do(t, statements["take over"], pq.Array([]string{deadRelay}))
			db.Due(t)
		}),
	}}
	once(t, db.through(t, f.wrap), all(), relay.Config{})
	db.want(t, 1, "tasks were done", `SELECT count(*) FROM effect WHERE attempt = 2`)
}

func TestARelayThatEndedSaysSo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, begun, release := waiting()
	defer release()
	r, log := background(t, db, reg, relay.Config{})
	first := r.Done()
	ended := func(done <-chan struct{}) bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	if err := r.Stop(t.Context()); err != nil || ended(first) {
		t.Errorf("before Start: it has ended: %v; Stop: %v", ended(first), err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Enqueue(t, "TX", 1)
	<-begun
	stopped := make(chan error)
	go func() { stopped <- r.Stop(context.Background()) }()
	if err := r.Run(t.Context()); !errors.Is(err, relay.ErrRunning) || ended(first) || r.Done() != first {
		t.Errorf("while a handler runs: it has ended: %v; Run: %v", ended(first), err)
	}
	release()
	<-first
	db.wantRows(t, 0, `outbox.task`)
	if n := db.Stats().InUse; n != 0 || !errors.Is(r.Health(), relay.ErrNotRunning) {
		t.Errorf("after the end: %d connections are in use, Health is %v", n, r.Health())
	}
	if err := <-stopped; err != nil || r.Done() != first {
		t.Errorf("Stop: %v; another channel before the next Start: %v", err, r.Done() != first)
	}

	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := r.Done(); ended(second) {
		t.Error("after the second Start it has ended")
	}
	if err := r.Stop(t.Context()); err != nil || !ended(r.Done()) {
		t.Errorf("Stop: %v; it has ended: %v", err, ended(r.Done()))
	}
	if err := r.RunOnce(t.Context()); err != nil || !ended(r.Done()) {
		t.Errorf("RunOnce: %v; it has ended: %v", err, ended(r.Done()))
	}
	log.Want(t, 2, `msg="outbox: relay stopped"`) // RunOnce says nothing of it
}
