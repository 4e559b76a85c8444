package relay_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// atOnce counts the tasks of each key that run at once.
type atOnce struct {
	mu       sync.Mutex
	now, max map[string]int
	runs     int
}

func newAtOnce() *atOnce { return &atOnce{now: map[string]int{}, max: map[string]int{}} }

func (a *atOnce) add(key string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now[key] += n
	a.max[key] = max(a.max[key], a.now[key])
	a.runs += max(n, 0)
}

// ofKey is a task whose first Fail attempts do not succeed.
type ofKey struct {
	Key  string
	Fail int
}

// I14. Tasks of a key fail, snooze, run again and are taken by several relays. A task counts until its
// handler returns, so that its transaction is open still.
func TestOfAGroupKeyAtMostSoManyTasksRunAtOnce(t *testing.T) {
	const keys, each, limit = 5, 40, 3
	eachKind(t, func(t *testing.T, kind string, db *database) {
		seen := newAtOnce()
		reg := handlers.New()
		relaytest.Register(reg, kind, "X", 20,
			func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[ofKey]) error {
				for _, task := range tasks {
					seen.add(task.Payload.Key, 1)
					defer seen.add(task.Payload.Key, -1)
				}
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // work
				if task := tasks[0]; task.Attempt <= task.Payload.Fail {
					return []error{errors.New("boom"), handlers.Snooze(0), handlers.RunAgain(0)}[rand.IntN(3)]
				}
				return nil
			}, handlers.MaxRunningPerKey(limit), relaytest.RetrySoon())
		var tasks []outbox.TaskSpec
		for i := range keys * each {
			of := ofKey{fmt.Sprint(i % keys), rand.IntN(20) / 17}
			tasks = append(tasks, outbox.TaskSpec{Type: "X", Payload: of, Options: []outbox.Option{outbox.GroupBy(of.Key)}})
		}
		relaytest.EnqueueAll(db.DB, tasks...)
		for range 2 {
			run(t, open(t, db.URL), reg, relay.Config{Workers: 10, PollInterval: 100 * time.Millisecond})
		}
		db.Emptied(t, time.Minute)
		if most := slices.Max(slices.Collect(maps.Values(seen.max))); most > limit || seen.runs < keys*each {
			t.Errorf("of a key up to %d of %d tasks ran at once, want %d", most, seen.runs, limit)
		}
		relaytest.Eventually(t, time.Minute, "each request is met", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.place_request`) == 0
		})
	})
}

// I10: places are given through the indexes, each key by itself, whatever the tables were like when
// their statistics were taken, and however many tasks of one key wait.
func TestPlacesAreGivenThroughIndexesWithAnyStatistics(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off); ALTER TABLE outbox.place_request
		SET (autovacuum_enabled = off)`)
	const large, keys = 30_000, 100
	fill := func(tasks, keys int) {
		db.Do(t, `INSERT INTO outbox.task (task_type, group_key) SELECT 'X', CASE WHEN n % 2 = 0 THEN 0 ELSE n % $2 END
			FROM generate_series(1, $1::int) n`, tasks, keys)
	}
	for _, stats := range relaytest.Part([]struct{ tasks, keys int }{{0, 1}, {10, 3}, {large, large}, {large, keys}}, 2) {
		db.Do(t, `TRUNCATE outbox.task, outbox.place_request`)
		fill(stats.tasks, stats.keys)
		db.Do(t, `VACUUM ANALYZE outbox.task, outbox.place_request`)
		db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.place_request`)
		fill(large, keys)
		read := explain(t, db, true, `SELECT outbox.promote_places(0, 1000)`)
		if n := read.Hit + read.Read; n > 80*keys { // an UPDATE of each of them writes to six indexes
			t.Errorf("statistics of %v: a promotion of %d keys reads %d pages", stats, keys, n)
		}
	}
}

// A key takes its places, whatever waits for them, and no other worker.
func TestAKeyThatHangsHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, release, done := handlers.New(), make(chan struct{}), make(chan int64, 100)
	handlers.Tx(reg, outbox.NewTaskType[ofKey]("X"), func(ctx context.Context, _ *sql.Tx, task *outbox.Task[ofKey]) error {
		if task.Payload.Key == "hangs" {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		done <- task.ID
		return nil
	}, handlers.MaxRunningPerKey(2))
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key, payload) SELECT 'X', 'hangs', '{"Key": "hangs"}'
		FROM generate_series(1, 200)`)
	run(t, db, reg, relay.Config{Workers: 3})
	relaytest.Eventually(t, time.Minute, "the key has its places", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task WHERE group_place IS NOT NULL`) == 2
	})
	for n := range 20 {
		db.Do(t, `INSERT INTO outbox.task (task_type, group_key) VALUES ('X', $1)`, fmt.Sprint("healthy ", n%3))
		<-done
	}
	db.want(t, 198, "tasks wait", `SELECT count(*) FROM outbox.task WHERE state = 'waiting'`)
	close(release)
	db.Emptied(t, time.Minute)
}

// What the first of three tasks of a key with one place comes to, and where the others are then.
func TestATaskThatDoesNotRunHoldsNoPlace(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		results := map[string]error{"fails": errAlways, "throttles": handlers.RetryAfter(time.Hour, errAlways),
			"snoozes": handlers.Snooze(time.Hour), "runs again": handlers.RunAgain(time.Hour),
			"discards": handlers.Discard(errAlways), "dies": handlers.Dead(errAlways), "is done": nil}
		for taskType, result := range results {
			kinds[kind](reg, taskType, func(task *outbox.Task[payload]) error {
				if task.Payload.N == 1 {
					return result
				}
				return nil
			}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
			db.Do(t, `INSERT INTO outbox.task (task_type, payload, group_key)
				SELECT $1, jsonb_build_object('N', n), 'k' FROM generate_series(1, 3) n`, taskType)
		}
		once(t, db, reg, relay.Config{})
		for taskType := range results {
			want := "1 scheduled"
			if slices.Contains([]string{"discards", "dies", "is done"}, taskType) {
				want = ""
			}
			db.want(t, want, taskType, `SELECT COALESCE(string_agg(concat_ws(' ', payload ->> 'N', state, group_place),
				', ' ORDER BY task_id), '') FROM outbox.task WHERE task_type = $1`, taskType)
		}
		db.Do(t, `SELECT outbox.run_task_now(task_id) FROM outbox.task`)
		db.want(t, 4, "tasks wait for a place", `SELECT count(*) FROM outbox.task WHERE state = 'waiting'`)
		db.want(t, 4, "requests for one", `SELECT count(*) FROM outbox.place_request`)
	})
}

// The most urgent goes first, then the one that has been due longest: tasks that always run again do not
// hold up a fresh one of their key.
func TestAPlaceGoesToTheMostUrgentTaskThatHasBeenDueLongest(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key, priority, attempt, run_at)
		SELECT 'X', 'k', (n * 7) % 3, (n * 11) % 2, now() - (n * 5) % 7 * interval '1 s' FROM generate_series(1, 30) n`)
	want := []int64{}
	for n := range int64(30) {
		want = append(want, n+1)
	}
	slices.SortFunc(want, func(a, b int64) int {
		return cmp.Or(cmp.Compare(a*7%3, b*7%3), cmp.Compare(b*5%7, a*5%7), cmp.Compare(a, b))
	})
	var got []int64
	reg := handlers.New()
	kinds["tx"](reg, "X", func(task *outbox.Task[payload]) error {
		got = append(got, task.ID)
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 1})
	if !slices.Equal(got, want) {
		t.Errorf("tasks ran in the order %v, want %v", got, want)
	}
}

// promoted gives the free places of all keys, as a relay does.
func (db *database) promoted(t testing.TB) {
	t.Helper()
	db.Do(t, `SELECT outbox.promote_places(0, 1000)`)
}

// placed are the tasks of a type with their places.
const placed = `SELECT COALESCE(string_agg(concat_ws(' ', task_id, state, group_place), ', ' ORDER BY task_id), '')
	FROM outbox.task WHERE task_type = $1`

// The places are numbered, and one that is free is given before others; never more than the limit of
// the moment are taken.
func TestTheNumberOfPlacesFollowsTheLatestLimit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	limit := func(n int) { // as a relay that starts
		t.Helper()
		reg := handlers.New()
		kinds["tx"](reg, "X", func(*outbox.Task[payload]) error { return nil }, handlers.MaxRunningPerKey(n))
		db.Do(t, `INSERT INTO outbox.task_type (task_type, paused) VALUES ('X', true) ON CONFLICT DO NOTHING`)
		once(t, db, reg, relay.Config{})
	}
	end := func(id int) {
		t.Helper()
		db.Do(t, `DELETE FROM outbox.task WHERE task_id = $1`, id)
		db.promoted(t)
	}
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key) SELECT 'X', 'k' FROM generate_series(1, 7)`)
	db.promoted(t)
	db.wantText(t, "1 ready 1, 2 waiting, 3 waiting, 4 waiting, 5 waiting, 6 waiting, 7 waiting", placed, "X")
	limit(2)
	db.promoted(t) // without another task that comes or ends
	db.wantText(t, "1 ready 1, 2 ready 2, 3 waiting, 4 waiting, 5 waiting, 6 waiting, 7 waiting", placed, "X")
	limit(3)
	end(1)
	db.wantText(t, "2 ready 2, 3 ready 3, 4 ready 1, 5 waiting, 6 waiting, 7 waiting", placed, "X")
	limit(0) // says nothing
	end(3)
	db.wantText(t, "2 ready 2, 4 ready 1, 5 ready 3, 6 waiting, 7 waiting", placed, "X")
	limit(1)
	end(2)
	db.wantText(t, "4 ready 1, 5 ready 3, 6 waiting, 7 waiting", placed, "X")
	end(5)
	end(4)
	db.wantText(t, "6 ready 1, 7 waiting", placed, "X")
}

// I14: each way in which an app or an operator changes a waiting task keeps the limit, and leaves no key
// without a request.
func TestATaskOfAGroupKeepsTheLimitWhateverChangesIt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	group, later := outbox.GroupBy("k"), outbox.After(time.Hour)
	replace, reschedule := outbox.OnConflict(outbox.ConflictReplace), outbox.OnConflict(outbox.ConflictReschedule)
	for n := 1; n <= 3; n++ {
		db.keyed(t, "X", n, group, outbox.Unique(fmt.Sprint(n)))
	}
	db.promoted(t)
	db.wantText(t, "1 ready 1, 2 waiting, 3 waiting", placed, "X")
	db.keyed(t, "X", 1, outbox.Unique("1"), reschedule, later) // it gives its place back
	db.keyed(t, "X", 2, outbox.Unique("2"), replace, later)
	db.promoted(t)
	db.wantText(t, "1 scheduled, 2 scheduled, 3 ready 1", placed, "X")
	db.keyed(t, "X", 2, outbox.Unique("2"), replace)
	db.Do(t, `SELECT outbox.run_task_now(1)`)
	db.wantText(t, "1 waiting, 2 waiting, 3 ready 1", placed, "X")
	db.keyed(t, "X", 2, outbox.Unique("2"), replace, outbox.Priority(-1))
	db.Do(t, `SELECT outbox.cancel_task(3)`)
	db.promoted(t)
	db.wantText(t, "1 waiting, 2 ready 1", placed, "X")
	db.Do(t, `UPDATE outbox.task SET state = 'scheduled', group_place = NULL WHERE task_id = 2`)
	db.promoted(t)
	db.wantText(t, "1 ready 1, 2 scheduled", placed, "X")
	db.Do(t, `DELETE FROM outbox.task`)
	db.promoted(t)
	db.want(t, 0, "requests are left", `SELECT count(*) FROM outbox.place_request`)
}

// A task that another transaction holds is passed over, and not forgotten. Its key holds up no other.
func TestAPlaceGoesPastATaskThatIsLocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key) VALUES ('X', 'k'), ('X', 'k'), ('X', 'alone')`)
	release := db.Hold(t, `SELECT FROM outbox.task WHERE task_id IN (1, 3) FOR UPDATE`)
	db.promoted(t)
	db.wantText(t, "1 waiting, 2 ready 1, 3 waiting", placed, "X")
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key) VALUES ('X', 'other')`)
	db.Do(t, `SELECT outbox.promote_places(0, 1)`) // of the key whose only task is locked
	db.Do(t, `SELECT outbox.promote_places(0, 1)`)
	db.wantText(t, "1 waiting, 2 ready 1, 3 waiting, 4 ready 1", placed, "X")
	release()
	db.promoted(t)
	db.wantText(t, "1 waiting, 2 ready 1, 3 ready 1, 4 ready 1", placed, "X")
}

// A promotion of many keys gives each a part, and the rest without a task that comes or ends. So does a
// relay that raises the number.
func TestEachKeyGetsAllOfItsPlaces(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task_type (task_type, paused, max_running_per_key) VALUES ('X', true, 2)`)
	db.Do(t, `INSERT INTO outbox.task (task_type, group_key) SELECT 'X', n % 3 FROM generate_series(1, 9) n`)
	const taken = `SELECT count(*) FROM outbox.task WHERE group_place IS NOT NULL`
	for i, want := range []int{3, 6, 6} {
		db.Do(t, `SELECT outbox.promote_places(0, 3)`)
		db.want(t, want, fmt.Sprint("places are taken after promotion ", i+1), taken)
	}
	db.want(t, 0, "requests", `SELECT count(*) FROM outbox.place_request`)
	reg := handlers.New()
	kinds["tx"](reg, "X", func(*outbox.Task[payload]) error { return nil }, handlers.MaxRunningPerKey(3))
	once(t, db, reg, relay.Config{})
	db.want(t, 9, "places are taken once the number is raised", taken)
}
