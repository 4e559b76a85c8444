package relay_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// newOrdered is a database with a log of the runs of ordered tasks.
func newOrdered(t testing.TB) *database {
	db := newDatabase(t)
	db.CreateRuns(t)
	return db
}

func TestTasksOfAnOrderingKeyRunOneAfterTheOther(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newOrdered(t)
	const keys, each = 30, 10
	var tasks []outbox.TaskSpec
	for range each {
		for key := range keys {
			tasks = append(tasks, outbox.TaskSpec{Type: relaytest.OrderedTypes[key%3],
				Payload: relaytest.OrderedPayload{Fail: rand.IntN(20) / 17},
				Options: []outbox.Option{outbox.OrderedBy(fmt.Sprint(key))}})
		}
	}
	relaytest.EnqueueAll(db.DB, tasks...)
	for range 3 {
		run(t, open(t, db.URL), relaytest.Ordered(), relay.Config{Workers: 6, PollInterval: 100 * time.Millisecond})
	}
	db.Emptied(t, 60*time.Second)
	db.InOrder(t, keys*each)
}

// A process's own wake-ups suffice: no poll is waited for between the tasks of a key.
func TestAKeyGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	for _, taskType := range relaytest.Part(relaytest.OrderedTypes, 1) {
		t.Run(taskType, func(t *testing.T) {
			db := newOrdered(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) SELECT $1, 'k' FROM generate_series(1, 50)`, taskType)
			once(t, db, relaytest.Ordered(), relay.Config{PollInterval: time.Minute})
			db.InOrder(t, 50)
		})
	}
}

// One that commits late has a lower id, and runs when it is the head: it is not skipped and runs
// beside none.
func TestAnOrderedTaskThatCommitsLateIsNotSkipped(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('ORDERED_TX', 'k')`)
	// waits for nobody
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) SELECT 'ORDERED_TX', 'k' FROM generate_series(1, 3)`)
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.want(t, 3, "tasks ran while another transaction is open", `SELECT count(*) FROM run`)
	commit()
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.want(t, 4, "tasks ran", `SELECT count(*) FROM run`)
}

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
	var places bool
	if err := tx.QueryRow(statements["promote heads"], 1000, 0).Scan(&met, &places); err != nil || met != 1 {
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
	needs.CI(t)
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
		tx := db.begin(t)
		_, err := tx.Exec(statements["lock heads"], "60000")
		noErr(t, err)
		whole := explainIn(t, tx, true, statements["promote heads"], 1000, 0)
		noErr(t, tx.Rollback())
		whole.each(func(p plan) {
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

// Tasks of other types run while what is due, and heads of ordering keys, are being promoted,
// however long that takes.
func TestTasksRunBesideAPromotion(t *testing.T) {
	t.Parallel()
	const n = 50
	for name, c := range map[string]struct{ hold, enqueue string }{
		"of heads": {`LOCK TABLE outbox.headless_key IN SHARE MODE`,
			`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'ORDERED_TX', n FROM generate_series(1, 50) n`},
		"of due tasks": {`SELECT pg_advisory_xact_lock(57)`,
			`INSERT INTO outbox.task (task_type, state) SELECT 'ORDERED_TX', 'scheduled' FROM generate_series(1, 50) n`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newOrdered(t)
			db.Do(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN PERFORM pg_advisory_xact_lock_shared(57); RETURN NEW; END $$;
				CREATE TRIGGER slow BEFORE UPDATE ON outbox.task FOR EACH ROW
				WHEN (OLD.state = 'scheduled') EXECUTE FUNCTION slow()`)
			db.Do(t, c.enqueue)
			release := db.Hold(t, c.hold)
			run(t, db, relaytest.Ordered(), relay.Config{Workers: 3})
			relaytest.Eventually(t, time.Minute, "a promotion waits", func() bool {
				return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock' AND query LIKE '/* outbox: promote%'`) == 1
			})
			db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'ORDERED_LEASED' FROM generate_series(1, $1) n`, n)
			relaytest.Eventually(t, time.Minute, "all tasks of the other type run", func() bool {
				return db.Int(t, `SELECT count(*) FROM run`) == n
			})
			db.want(t, n, "the others wait", `SELECT count(*) FROM outbox.task`)
			release()
			db.Emptied(t, time.Minute)
		})
	}
}

// key is the place of a task in its lane.
func key(a, b outbox.Task[payload]) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID))
}

// taken are the tasks in the order in which one worker takes them by claims of these sizes: of ten claims
// nine in the lane's order, and one of the tasks that have been due longest. Of the latter, a group
// begins with the one that has been due longest; all else is in the lane's order.
func taken(tasks []outbox.Task[payload], claims []int) (out []int64) {
	left := slices.SortedFunc(slices.Values(tasks), key)
	for n, size := range claims {
		size = min(size, len(left))
		if n%10 == 9 && size > 0 {
			slices.SortFunc(left, func(a, b outbox.Task[payload]) int {
				return cmp.Or(a.RunAt.Compare(b.RunAt), cmp.Compare(a.ID, b.ID))
			})
			slices.SortFunc(left[1:size], key)
		}
		for _, task := range left[:size] {
			out = append(out, task.ID)
		}
		left = left[size:]
		slices.SortFunc(left, key)
	}
	return out
}

// One worker claims priority first, then fewer attempts, then in the order of enqueueing; every
// tenth claim goes by due time. A Batch handler gets each batch in that order, of which there is one here,
// and a group runs in it.
func TestALaneIsClaimedByPriorityThenAttemptsThenID(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind string
		opts []handlers.Option
	}{
		"tx":           {"tx", []handlers.Option{handlers.GroupCommit(1, 0)}},
		"tx in groups": {"tx", []handlers.Option{handlers.GroupCommit(4, within)}},
		"batch":        {"batch", nil},
		"leased":       {"leased", nil},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, priority, attempt, run_at) SELECT $1, (n * 7) % 5 - 2, (n * 11) % 3,
				now() - (n * 13) % 17 * interval '1 s'
				FROM generate_series(1, 60) n`, c.kind)
			var claims noted[int]
			s := begun(t, db, c.kind, 60, relay.Config{Workers: 1, Observers: []relay.Observer{{
				Claimed: func(_ context.Context, c relay.Claim) {
					if c.Tasks > 0 {
						claims.add(c.Tasks)
					}
				}}}}, c.opts...)
			if want := taken(s.tasks, claims.list()); !slices.Equal(s.ids, want) {
				t.Errorf("by claims of %v tasks were begun in the order %v, want %v", claims.list(), s.ids, want)
			}
			if n := len(claims.list()); n < 10 && c.kind != "batch" {
				t.Errorf("%d claims, of which none goes by due time", n)
			}
		})
	}
}

// starts are the tasks that handlers began, in their order, up to a number.
type starts struct {
	mu    sync.Mutex
	most  int
	ids   []int64
	tasks []outbox.Task[payload]
	full  chan struct{}
}

func (s *starts) begin(_ context.Context, task *outbox.Task[payload]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ids) < s.most {
		s.ids, s.tasks = append(s.ids, task.ID), append(s.tasks, *task)
		if len(s.ids) == s.most {
			close(s.full)
		}
	}
	return nil
}

// begun runs a relay until n tasks of the kind have begun.
func begun(t testing.TB, db *database, kind string, n int, config relay.Config, opts ...handlers.Option) *starts {
	t.Helper()
	s := &starts{most: n, full: make(chan struct{})}
	reg := handlers.New()
	each(reg, kind, s.begin, opts...)
	r := run(t, db, reg, config)
	<-s.full
	r.Stop()
	return s
}

// Each tenth of the range of ids gets its share of the claims; the bounds are six standard deviations
// away. A claim looks near its pivot first, and further on where the type has few of the ids.
func TestRandomOrderClaimsFromEverywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind                       string
		apart, workers             int // ids
		tasks, claims, least, most int // of a tenth
	}{
		{"TX", 1, 2, 8000, 1000, 33, 157},
		{"LEASED", 1, 2, 8000, 1000, 33, 157},
		{"TX", 1000, 2, 4000, 400, 2, 70},
	} {
		t.Run(fmt.Sprintf("%s, %d apart", c.kind, c.apart), func(t *testing.T) {
			if c.apart == 1 {
				needs.Long(t)
			}
			db := newDatabase(t)
			db.sparse(t, c.kind, c.apart, c.tasks)
			var opts []handlers.Option
			if c.kind == "TX" { // a task is a claim: the tasks of a group are neighbours
				opts = []handlers.Option{handlers.GroupCommit(1, 0)}
			}
			s := begun(t, db, c.kind, c.claims, relay.Config{Order: relay.OrderRandom, Workers: c.workers}, opts...)
			var tenths [10]int
			for _, id := range s.ids {
				tenths[(int(id)/c.apart-1)*10/c.tasks]++
			}
			tenths[0] -= c.claims / 10 // they went by due time
			if slices.Min(tenths[:]) < c.least || slices.Max(tenths[:]) > c.most || slices.IsSorted(s.ids) {
				t.Errorf("the tenths of the ids have %v of %d claims, want %d to %d", tenths, c.claims, c.least, c.most)
			}
		})
	}
}

// sparse adds n tasks whose ids are so far apart.
func (db *database) sparse(t testing.TB, kind string, apart, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT $1 * n, $2
		FROM generate_series(1, $3::int) n`, apart, kind, n)
	db.Do(t, `VACUUM ANALYZE outbox.task`)
}
