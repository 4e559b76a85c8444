package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// inside counts the calls that run, and notes the most.
type inside struct{ now, most atomic.Int64 }

func (i *inside) enter() {
	now := i.now.Add(1)
	for most := i.most.Load(); now > most && !i.most.CompareAndSwap(most, now); most = i.most.Load() {
	}
}

func TestALimitOfOneRelayHolds(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		for name, limit := range map[string]handlers.Option{"relay": handlers.MaxRunningPerRelay(2),
			"total": handlers.MaxRunning(2)} {
			if !relaytest.Long && (kind == "TX") != (name == "relay") { // each kind with one of them
				continue
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				db, reg := newDatabase(t), handlers.New()
				db.Enqueue(t, kind, 60)
				var running inside
				full, markFull := context.WithCancel(t.Context()) // full ends once the limit is reached
				defer markFull()
				call := func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
					if len(tasks) > 1 {
						return errAlways // they run one by one, each with a slot
					}
					running.enter()
					defer running.now.Add(-1)
					if running.now.Load() >= 2 {
						markFull()
					}
					select {
					case <-full.Done():
					case <-ctx.Done():
						return ctx.Err()
					}
					<-time.After(5 * time.Millisecond)
					return nil
				}
				relaytest.Register(reg, strings.ToLower(kind), kind, 100, call, limit)
				other := newProbe(reg, "OTHER")
				r := run(t, db, reg, relay.Config{Workers: 10})
				other.measure(t, db, 3, time.Millisecond)
				db.Emptied(t, 20*time.Second)
				r.Stop()
				if n := running.most.Load(); n != 2 {
					t.Errorf("at most %d ran at once, want 2", n)
				}
			})
		}
	}
}

// Slots need not be freed by anybody: whatever ends a lease frees them.
func TestASlotIsFreeOnceTheLeaseThatItNamesIsOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for end, free := range map[string]int{
		`DELETE FROM outbox.task`: 1,
		`UPDATE outbox.task SET state = 'scheduled', relay_id = NULL, lease_token = NULL`: 1,
		`UPDATE outbox.task SET lease_token = gen_random_uuid()`:                          1,
		`SELECT 1`: 0,
	} {
		db.Do(t, emptyAll+`INSERT INTO outbox.task_type (task_type, max_running) VALUES ('LEASED', 1);
			INSERT INTO outbox.slot (task_type, slot) VALUES ('LEASED', 1)`)
		db.Do(t, fillSlot, someUUID)
		db.Do(t, end)
		if got := changed(t, db, "", statements["lock slots"], "LEASED", 1, "10000"); got != free {
			t.Errorf("after %s the claim got %d slots, want %d", end, got, free)
		}
	}
}

const fillSlot = `WITH leased AS (
	  INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token) VALUES ('LEASED', 'leased', 1, $1, $1)
	  RETURNING *)
	UPDATE outbox.slot s SET task_id = leased.task_id, lease_token = leased.lease_token FROM leased`

// Another claim fills a slot after this one's snapshot, which shows it free and not the lease that is in it by now.
func TestASlotThatIsFilledWhileAClaimReachesItIsNotFree(t *testing.T) {
	t.Parallel()
	for _, free := range []int{0, 1} {
		t.Run(fmt.Sprint(free, " free"), func(t *testing.T) {
			db := newDatabase(t)
			// A claim has its snapshot, and has seen no slot yet, when it reads the type's limit: there it waits for the gate.
			db.Do(t, `INSERT INTO outbox.task_type (task_type, max_running) VALUES ('LEASED', 1);
				INSERT INTO outbox.slot (task_type, slot) VALUES ('LEASED', 1);
				CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN true;
				END $$;
				ALTER TABLE outbox.task_type RENAME TO limits;
				CREATE VIEW outbox.task_type AS SELECT * FROM outbox.limits WHERE gate()`)
			open := hold(t, db, `SELECT pg_advisory_xact_lock(1)`)
			locked := make(chan int)
			go func() { locked <- changed(t, db, "", statements["lock slots"], "LEASED", 1, "10000") }()
			eventually(t, 20*time.Second, "the claim is at the gate", func() bool { return db.waitsAtAGate(t) })
			if free == 0 {
				db.Do(t, fillSlot, someUUID)
			}
			open()
			if got := <-locked; got != free {
				t.Errorf("the claim got %d slots, want %d", got, free)
			}
		})
	}
}

func TestTheLastRelayThatStartsStoresTheLimits(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pause(t, db, "TX")
	for i, step := range []struct {
		opts []handlers.Option
		want string
	}{
		{nil, "TX  / 0"},
		{[]handlers.Option{handlers.MaxRunning(5)}, "TX 5 / 5"},
		{[]handlers.Option{handlers.MaxRunning(2), handlers.Rate(10, time.Second)}, "TX 2 10/1000000 5"},
		{[]handlers.Option{handlers.Rate(1, time.Minute)}, "TX 2 1/60000000 5"},
		{nil, "TX 2 1/60000000 5"},
	} {
		reg := handlers.New()
		registerTx(reg, typeTx, txEffect, step.opts...)
		once(t, db, reg, relay.Config{})
		db.want(t, step.want, fmt.Sprint("stored after step ", i), `SELECT string_agg(format('%s %s %s/%s %s', task_type,
			max_running, rate, rate_per,
			(SELECT count(*) FROM outbox.slot s WHERE s.task_type = t.task_type)), ', ' ORDER BY task_type)
			FROM outbox.task_type t`)
	}
}

// A relay that finds no work for its token must not keep it from the others.
func TestTokensThatAreNotUsedAreGivenBack(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	registerTx(reg, typeTx, txEffect, handlers.Rate(20, time.Hour)) // two at once
	for i, step := range []struct{ enqueue, done int }{{1, 1}, {3, 2}, {0, 2}} {
		db.Enqueue(t, "TX", step.enqueue)
		once(t, db, reg, relay.Config{})
		if n := db.Int(t, `SELECT count(*) FROM effect`); n != step.done {
			t.Errorf("step %d: %d tasks have run, want %d", i, n, step.done)
		}
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`) // one token's time
	for range 2 {
		once(t, db, reg, relay.Config{})
		db.want(t, 3, "tasks have run after one more token", `SELECT count(*) FROM effect`)
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = clock_timestamp() + interval '1 day'`) // the clock was put back
	once(t, db, reg, relay.Config{})
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`)
	once(t, db, reg, relay.Config{})
	db.want(t, 4, "tasks have run", `SELECT count(*) FROM effect`)
}
