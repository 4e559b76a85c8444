package relay_test

import (
	"context"
	"database/sql"
	"fmt"
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

// line is the tasks of a type in short: number, state and whether they still have their key.
const line = `SELECT string_agg(concat_ws(' ', COALESCE(payload ->> 'N', task_id::text), state, CASE
	WHEN ordering_key IS NULL THEN 'apart' END), ', ' ORDER BY task_id)
	FROM outbox.task WHERE task_type = $1`

// What the first of three tasks of a key comes to, and where the others are after what could run
// has run.
func TestTheResultOfAKeysFirstTaskSaysWhetherTheNextRuns(t *testing.T) {
	const waits, goesOn = "1 scheduled, 2 waiting, 3 waiting", ""
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, wants := handlers.New(), map[string]string{}
		for name, c := range map[string]struct {
			result       error
			plain, skips string // without and with SkipFailed
		}{
			"fails":      {errAlways, waits, "1 scheduled apart"},
			"throttles":  {handlers.RetryAfter(time.Hour, errAlways), waits, waits},
			"snoozes":    {handlers.Snooze(time.Hour), waits, waits},
			"runs again": {handlers.RunAgain(time.Hour), waits, waits},
			"discards":   {handlers.Discard(errAlways), goesOn, goesOn},
			"dies":       {handlers.Dead(errAlways), goesOn, goesOn},
			"is done":    {nil, goesOn, goesOn},
		} {
			for taskType, skip := range map[string]bool{name: false, name + ", skipped": true} {
				wants[taskType] = c.plain
				if skip {
					wants[taskType] = c.skips
				}
				kinds[kind](reg, taskType, func(task *outbox.Task[payload]) error {
					if task.Payload.N == 1 {
						return c.result
					}
					return nil
				}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
				db.Do(t, `INSERT INTO outbox.task (task_type, payload, ordering_key, skip_failed) SELECT $1, jsonb_build_object('N',
					n), 'k', $2 FROM generate_series(1, 3) n`, taskType, skip)
			}
		}
		once(t, db, reg, relay.Config{})
		for taskType, want := range wants {
			db.want(t, want, taskType, line, taskType)
		}
	})
}

// It waits until it is the head, and then until its time.
func TestAWaitingTaskThatIsUpdatedStaysInLine(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, option := range []outbox.Option{outbox.OnConflict(outbox.ConflictReplace), outbox.OnConflict(outbox.ConflictReschedule)} {
		db := newDatabase(t)
		reg, seen := handlers.New(), []int64{}
		kinds["tx"](reg, "X", func(task *outbox.Task[payload]) error {
			seen = append(seen, task.ID)
			return nil
		})
		for n := 1; n <= 3; n++ {
			db.keyed(t, "X", n, outbox.OrderedBy("k"), outbox.Unique(fmt.Sprint(n)))
		}
		if e := db.keyed(t, "X", 2, outbox.OrderedBy("other"), outbox.Unique("2"), option,
			outbox.After(time.Hour)); e.Outcome != outbox.OutcomeUpdated {
			t.Fatalf("Enqueue: %v", e)
		}
		db.wantText(t, "1 waiting, 2 waiting, 3 waiting", line, "X")
		once(t, db, reg, relay.Config{})
		db.wantText(t, "2 scheduled, 3 waiting", line, "X")
		db.keyed(t, "X", 2, outbox.Unique("2"), option)
		once(t, db, reg, relay.Config{})
		if !slices.Equal(seen, []int64{1, 2, 3}) {
			t.Errorf("%v ran", seen)
		}
	}
}

// While another transaction has promoted a task to the head and is not committed, the task waits
// all the same.
func TestAHeadThatIsBeingPromotedDoesNotFreeAUniqueKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.keyed(t, "X", 1, outbox.OrderedBy("k"), outbox.Unique("u"))
	tx := db.begin(t)
	defer tx.Rollback()
	var met int
	if err := tx.QueryRow(statements["promote heads"], 1000, 0).Scan(&met); err != nil || met != 1 {
		t.Fatalf("%d requests were met, %v", met, err)
	}
	if e := db.keyed(t, "X", 2, outbox.OrderedBy("k"), outbox.Unique("u")); e.Outcome != outbox.OutcomeSkipped {
		t.Errorf("Enqueue: %v, want Skipped", e)
	}
}

// A failure of the database in Complete is no attempt.
func TestAFailedAttemptAloneTakesATaskOutOfItsKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM
		pg_terminate_backend(pg_backend_pid()); RETURN OLD; END $$;
		CREATE TRIGGER die BEFORE DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION die()`)
	reg := handlers.New()
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 1) })
	}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, skip_failed)
		VALUES ('LEASED', 'k', true), ('LEASED', 'k', true)`)
	once(t, db, reg, relay.Config{})
	db.wantText(t, "1 scheduled, 2 waiting", line, "LEASED")
}

func TestARelayThatFreezesWhileItPromotesHeadsLetsGo(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	tx := db.begin(t)
	defer tx.Rollback()
	if _, err := tx.Exec(statements["lock heads"], "300"); err != nil {
		t.Fatal(err)
	}
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('ORDERED_TX', 'k')`)
	run(t, db, relaytest.Ordered(), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, 10*time.Second)
}

// I10: heads are promoted through the indexes, each key by itself, whatever the tables were like
// when their statistics were taken.
func TestHeadsArePromotedThroughIndexesWithAnyStatistics(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off); ALTER TABLE outbox.headless_key
		SET (autovacuum_enabled = off)`)
	const large = 30_000
	fill := func(tasks, keys, first, headless int) {
		db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, state) SELECT 'X', n % $2, 'waiting'
			FROM generate_series(1, $1::int) n`, tasks, keys)
		db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, state) SELECT 'X', n, 'scheduled'
			FROM generate_series(1, $1::int) n`, first)
		db.Do(t, `INSERT INTO outbox.headless_key (task_type, ordering_key) SELECT 'X', n % $2
			FROM generate_series(1, $1::int) n`, headless, keys)
	}
	for _, stats := range relaytest.Part([]struct{ tasks, keys, first, headless int }{
		{0, 1, 0, 0}, {10, 3, 2, 10}, {large, large, 0, large}, {large, 100, large, 10},
	}, 2) {
		db.Do(t, `TRUNCATE outbox.task, outbox.headless_key`)
		fill(stats.tasks, stats.keys, stats.first, stats.headless)
		db.Do(t, `VACUUM ANALYZE outbox.task, outbox.headless_key`)
		db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.headless_key`)
		fill(large, 1000, 500, large)
		var ways []string
		explain(t, db, true, statements["promote heads"], 1000, 0).each(func(p plan) {
			ways = append(ways, p.Index, strings.TrimSpace(p.Node+" "+p.Relation))
			if n := p.Rows * p.Loops; n > 2000 {
				t.Errorf("statistics of %v: %s %s reads %v rows for 1000 keys", stats, p.Node, p.Relation, n)
			}
		})
		for _, way := range []string{"task_waiting", "task_head", "task_pkey", "Tid Scan headless_key"} {
			if !slices.Contains(ways, way) || slices.Contains(ways, "Seq Scan task") {
				t.Errorf("statistics of %v: the plan uses %v, want %s", stats, ways, way)
			}
		}
	}
}

// Each statement requests one head for each of its keys, also where a view or a function inserts.
func TestAStatementRequestsAHeadOncePerKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var tasks []outbox.TaskSpec
	for i := range 40 {
		opts := []outbox.Option{outbox.OrderedBy(string(rune('a' + i%4)))}
		if i >= 20 {
			opts = append(opts, outbox.Unique(string(rune('A'+i))))
		}
		tasks = append(tasks, outbox.TaskSpec{Type: []string{"TX", "LEASED"}[i/4%2], Payload: payload{}, Options: opts})
	}
	tx := db.begin(t)
	defer tx.Rollback()
	if _, err := outbox.EnqueueMany(t.Context(), tx, tasks); err != nil {
		t.Fatal(err)
	}
	var keys, requests int
	if err := tx.QueryRow(`SELECT count(DISTINCT (task_type, ordering_key)), count(*)
		FROM outbox.headless_key`).Scan(&keys, &requests); err != nil || keys != 8 || requests != 16 {
		t.Errorf("%d keys have %d requests for a head, %v, want 8 by each of two statements", keys, requests, err)
	}
}
