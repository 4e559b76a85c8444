package relay_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
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
		for name, limit := range map[string]handlers.Option{"relay": handlers.MaxRunning(2),
			"total": handlers.MaxRunningTotal(2)} {
			if !relaytest.Long && (kind == "BATCH") != (name == "relay") { // each kind with one of them
				continue
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				db, reg := newDatabase(t), handlers.New()
				db.Enqueue(t, kind, 60)
				want := int64(2)
				if kind == "BATCH" {
					want = 1 // a call runs its tasks one after the other, and there is one batch
				}
				var running inside
				full, markFull := context.WithCancel(t.Context()) // full ends once the limit is reached
				defer markFull()
				call := func(ctx context.Context, _ *outbox.Task[payload]) error {
					running.enter()
					defer running.now.Add(-1)
					if running.now.Load() >= want {
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
				each(reg, kind, call, limit)
				other := newProbe(reg, "OTHER")
				r := run(t, db, reg, relay.Config{Workers: 10})
				other.measure(t, db, 3, time.Millisecond)
				db.Emptied(t, 20*time.Second)
				r.Stop()
				if n := running.most.Load(); n != want {
					t.Errorf("at most %d ran at once, want %d", n, want)
				}
			})
		}
	}
}

// The members of a failed batch run one by one, each with a slot.
func TestAFailedBatchOfALimitedTypeRunsOneByOne(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	db.Enqueue(t, "BATCH", 20)
	handlers.Batch(reg, typeBatch, 20, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		if len(tasks) > 1 {
			return errAlways
		}
		return batchEffect(ctx, tx, tasks)
	}, handlers.MaxRunningTotal(1))
	for range 3 {
		run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	}
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 20)
}

// Slots need not be freed by anybody: whatever ends a lease frees them.
func TestASlotIsFreeOnceTheLeaseThatItNamesIsOver(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		end  string
		runs int // of the other task
	}{
		"completed": {`DELETE FROM outbox.task WHERE task_id = 1`, 1},
		"taken over": {`UPDATE outbox.task SET state = 'scheduled', relay_id = NULL, lease_token = NULL,
			run_at = now() + interval '1 h' WHERE task_id = 1`, 1},
		"stolen":  {`UPDATE outbox.task SET lease_token = gen_random_uuid() WHERE task_id = 1`, 1},
		"nothing": {`SELECT 1`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Enqueue(t, "LEASED", 2)
			db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
				VALUES ($1, 'h', 1, now() + interval '5 minutes', '{}')`, someUUID)
			db.Do(t, `UPDATE outbox.task SET state = 'leased', attempt = 1, relay_id = $1, lease_token = $1 WHERE task_id = 1`,
				someUUID)
			db.Do(t, `INSERT INTO outbox.slot (task_type, slot, task_id, lease_token) VALUES ('LEASED', 1, 1, $1)`, someUUID)
			db.Do(t, c.end)
			once(t, db, leased(leasedEffect, handlers.MaxRunningTotal(1)), relay.Config{})
			db.want(t, c.runs, "runs of the second task", `SELECT count(*) FROM effect WHERE task_id = 2`)
			db.Do(t, `TRUNCATE outbox.task`)
		})
	}
}

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
				db.Do(t, `WITH leased AS (
					  INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token) VALUES ('LEASED', 'leased', 1, $1, $1)
					  RETURNING *)
					UPDATE outbox.slot s SET task_id = leased.task_id, lease_token = leased.lease_token FROM leased`, someUUID)
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
		{[]handlers.Option{handlers.MaxRunningTotal(5)}, "TX 5 / 5"},
		{[]handlers.Option{handlers.MaxRunningTotal(2), handlers.Rate(10, time.Second)}, "TX 2 10/1000000 5"},
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

// While a type's slots or tokens are taken for long, relays do not ask for one all the time.
func TestARelayDoesNotSpinWhileItsTypesAreLimited(t *testing.T) {
	needs.Timing(t)
	t.Parallel()
	for name, limit := range map[string]handlers.Option{"slots": handlers.MaxRunningTotal(1),
		"rate": handlers.Rate(1, time.Hour)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			db.Enqueue(t, "TX", 100)
			started, end := make(chan struct{}, 100), make(chan struct{})
			each(reg, "TX", func(context.Context, *outbox.Task[payload]) error {
				started <- struct{}{}
				<-end
				return nil
			}, limit)
			run(t, db, reg, relay.Config{})
			<-started
			run(t, db, reg, relay.Config{})
			const transactions = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
			per := math.MaxInt // in the quietest second: the server adds those of the start late
			for round := 0; round < 3 || round < 15 && per > 60; round++ {
				before := db.Int(t, transactions)
				<-time.After(time.Second)
				per = min(per, db.Int(t, transactions)-before)
			}
			close(end)
			if per > 60 || len(started) > 0 {
				t.Errorf("two relays that could do nothing made about %d transactions a second, and started %d tasks", per,
					len(started))
			}
			db.Do(t, `DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task FOR UPDATE SKIP LOCKED)`)
		})
	}
}
