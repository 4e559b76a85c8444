package relay_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// held registers handlers of each kind that tell that they have begun and wait for the end of their
// context.
func held(begun chan<- int64) *handlers.Registry {
	reg := handlers.New()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
			begun <- task.ID
			<-ctx.Done()
			return ctx.Err()
		})
	}
	return reg
}

func TestObserversHearOfRunsThatAreCanceledDrainedOrLost(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		do   func(t *testing.T, db *database, h *heard, ids []int64)
		want map[string]string
	}{
		"drained": {func(*testing.T, *database, *heard, []int64) {},
			map[string]string{"TX": "drained", "BATCH": "drained", "LEASED": "drained"}},
		"canceled": {func(t *testing.T, db *database, _ *heard, ids []int64) {
			for _, id := range ids {
				db.cancel(t, int(id))
			}
			db.gone(t)
		}, map[string]string{"TX": "canceled", "BATCH": "canceled", "LEASED": "canceled"}},
		"lost": {func(t *testing.T, db *database, h *heard, _ []int64) {
			db.Do(t, `UPDATE outbox.task SET lease_token = $1, leased_until = now() + interval '1 hour' WHERE state = 'leased'`,
				someUUID)
			eventually(t, 20*time.Second, "the lease is lost", func() bool { return h.outcomes()["LEASED"] != "" })
		}, map[string]string{"TX": "drained", "BATCH": "drained", "LEASED": "lease_lost"}},
	} {
		tests[name] = func(t *testing.T) {
			db, h := newDatabase(t), &heard{}
			begun := make(chan int64, 10)
			db.enqueueEach(t, 1)
			r := run(t, db, held(begun), relay.Config{Workers: 4, Observers: h.observers(), DrainTimeout: 50 * time.Millisecond})
			c.do(t, db, h, []int64{<-begun, <-begun, <-begun})
			r.Stop()
			got := h.outcomes()
			for kind, all := range got { // a claim that was on its way may get what was given back, and gives it back
				if each := slices.Compact(strings.Fields(all)); slices.Equal(each, []string{"drained"}) {
					got[kind] = each[0]
				}
			}
			same(t, got, c.want)
			h.balanced(t)
		}
	}
	relaytest.Together(t, tests)
}

func TestObserversHearOfFailuresOfTheDatabaseAsNoAttempt(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg, h := newDatabase(t), handlers.New(), &heard{}
	later := handlers.Backoff(constant(time.Hour))
	const kill = `SELECT pg_terminate_backend(pg_backend_pid())`
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, kill)
		return err
	}, later)
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, _ []*outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, kill)
		return err
	}, later)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "BATCH", 1)
	run(t, db, reg, relay.Config{Workers: 4, Observers: h.observers()})
	eventually(t, 20*time.Second, "both runs have ended", func() bool {
		got := h.outcomes()
		return strings.Contains(got["TX"], "infrastructure") && strings.Contains(got["BATCH"], "infrastructure")
	})
	for kind, got := range h.outcomes() { // it may have been claimed before the first run was put off
		for _, one := range strings.Fields(got) {
			if one != "infrastructure" && one != "released" {
				t.Errorf("%s: %s", kind, got)
			}
		}
	}
	db.want(t, 0, "attempts", `SELECT max(attempt) FROM outbox.task`)
}

// The session's clock is an hour ahead, by a function that is found before PostgreSQL's.
func TestTheWaitThatObserversHearOfIsByPostgreSQLsClock(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE SCHEMA ahead; CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT
		pg_catalog.clock_timestamp() + interval '1 hour' $$`)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "LEASED", 1)
	h := &heard{}
	once(t, direct(t, with(t, db.URL, "search_path", "ahead,pg_catalog,public")), all(),
		relay.Config{Observers: h.observers()})
	if len(h.ends) != 2 {
		t.Fatalf("it heard of %v", h.ends)
	}
	for _, e := range h.ends {
		if waited := e.Tasks[0].Waited; waited < time.Hour || waited > time.Hour+time.Minute {
			t.Errorf("%s waited %v, want an hour by that clock", e.Type, waited)
		}
	}
}
