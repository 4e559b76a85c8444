package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// I8: a unique key among many tasks costs one statement more, and no task costs a row of counts:
// neither those with a key nor those without.
func TestKeysInACallCostOneStatementAndTheCountsOfOne(t *testing.T) {
	t.Parallel()
	const n = 40
	onEveryClient(t, []contract{{"one_statement_each", func(t *testing.T, e *env) {
		for keyed, statements := range map[int]int{0: 1, 1: 2, n / 2: 2, n: 1} {
			tx, taskType := e.tx(t), newType()
			tasks := make([]outbox.TaskSpec, n)
			for i := range tasks {
				tasks[i] = outbox.TaskSpec{Type: taskType, Payload: i}
				if i*keyed/n != (i+1)*keyed/n { // spread among the others
					tasks[i].Options = []outbox.Option{outbox.Unique(fmt.Sprint(i))}
				}
			}
			counts := func() int {
				return scan[int](t, tx.Querier, `SELECT count(*) FROM outbox.counter_log WHERE task_type = $1`, taskType)
			}
			got := putMany(t, tx, tasks...)
			// A statement counts its first three rows one by one, and the others in one row.
			if tx.statements != statements || counts() > 4*statements {
				t.Errorf("%d of %d with a key: %d statements and %d rows of counts, want %d and at most %d",
					keyed, n, tx.statements, counts(), statements, 4*statements)
			}
			for i, s := range got {
				want(t, tx.Querier, fmt.Sprint(i), `SELECT payload::text FROM outbox.task WHERE task_id = $1`, s.ID)
			}
			again, before := putMany(t, tx, tasks...), counts()
			for i := range again {
				if (again[i] == outbox.Enqueued{ID: got[i].ID, Outcome: outbox.OutcomeSkipped}) != (len(tasks[i].Options) > 0) {
					t.Errorf("task %d of the same call again: got %v after %v", i, again[i], got[i])
				}
			}
			if keyed == n && counts() != before {
				t.Errorf("%d rows count tasks that were skipped", counts()-before)
			}
		}
	}}})
}

// EnqueueMany does what as many calls of Enqueue do: with keys that are taken by a task in any
// state and by other tasks of the call, and with tasks that have no key.
func TestManyKeysDoWhatEachDoesAlone(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	// What the tasks of a type are by then, with the places in their call instead of ids.
	state := func(taskType string, enqueued []outbox.Enqueued) (lines []string) {
		for _, s := range rows(t, d.db, taskType) {
			at := slices.IndexFunc(enqueued, func(e outbox.Enqueued) bool { return e.ID == s.ID && e.Outcome == outbox.OutcomeCreated })
			extra := scan[string](t, d.db, `SELECT concat_ws(' ', unique_key, unique_until_done, ordering_key, skip_failed, timeout_ms,
				last_error, timeline -> -1 ->> 'event') FROM outbox.task WHERE task_id = $1`, s.ID)
			hours := time.Until(s.RunAt).Round(time.Hour).Hours()
			lines = append(lines, fmt.Sprint(at, s.Payload, s.Headers, s.Priority, s.MaxAttempts, s.State, s.Attempt, hours, extra))
		}
		slices.Sort(lines)
		return lines
	}
	for range 40 {
		var specs []func(taskType string) outbox.TaskSpec
		for range 1 + r.IntN(12) {
			payload, opts := r.IntN(3), []outbox.Option(nil)
			add := func(one int, o outbox.Option) {
				if r.IntN(one) == 0 {
					opts = append(opts, o)
				}
			}
			add(2, outbox.Priority(r.IntN(5)))
			add(3, outbox.After(time.Duration(r.IntN(3))*time.Hour))
			add(4, outbox.Headers(map[string]string{"h": fmt.Sprint(r.IntN(9))}))
			add(4, outbox.MaxAttempts(1+r.IntN(5)))
			add(4, outbox.Timeout(time.Duration(1+r.IntN(5))*time.Second))
			if r.IntN(6) == 0 {
				opts = append(opts, outbox.OrderedBy("o"), outbox.SkipFailed())
			}
			if r.IntN(5) > 0 {
				until := [][]outbox.UniqueOption{nil, {outbox.UntilDone()}}[r.IntN(2)]
				unique := outbox.Unique(fmt.Sprint("k", r.IntN(4)), until...)
				if r.IntN(3) == 0 {
					unique = outbox.UniquePayload(until...)
				}
				opts = append(opts, unique, outbox.OnConflict([]outbox.Conflict{"", outbox.ConflictReplace, outbox.ConflictReschedule}[r.IntN(3)]))
			}
			specs = append(specs, func(taskType string) outbox.TaskSpec {
				return outbox.TaskSpec{Type: taskType, Payload: payload, Options: opts}
			})
		}
		var holders [4]int // of the keys k0 to k3
		for i := range holders {
			holders[i] = r.IntN(len(holderStates) + 1)
		}
		do := func(enqueue func(tx outbox.Querier, tasks ...outbox.TaskSpec) []outbox.Enqueued) string {
			taskType := newType()
			for i, h := range holders {
				if h < len(holderStates) {
					exec(t, d.db, `INSERT INTO outbox.task (task_type, unique_key, unique_until_done, payload) VALUES ($1, $2, $3, '"held"')`,
						taskType, fmt.Sprint("k", i), i%2 == 0)
					exec(t, d.db, `UPDATE outbox.task SET `+holderStates[h]+` WHERE task_type = $1 AND unique_key = $2`,
						taskType, fmt.Sprint("k", i))
				}
			}
			first := scan[int64](t, d.db, `SELECT COALESCE(min(task_id), 0) FROM outbox.task WHERE task_type = $1`, taskType)
			tasks := make([]outbox.TaskSpec, len(specs))
			for i, spec := range specs {
				tasks[i] = spec(taskType)
			}
			tx := begin(t, d.db)
			got := enqueue(tx, tasks...)
			end(t, tx.Commit)
			lines := state(taskType, got)
			for i, e := range got { // the holders' ids differ by where they began
				at := slices.IndexFunc(got, func(c outbox.Enqueued) bool { return c.ID == e.ID && c.Outcome == outbox.OutcomeCreated })
				if at < 0 {
					lines = append(lines, fmt.Sprint(i, e.Outcome, " holder ", e.ID-first))
				} else {
					lines = append(lines, fmt.Sprint(i, e.Outcome, " of ", at))
				}
			}
			return strings.Join(lines, "\n")
		}
		alone := do(func(tx outbox.Querier, tasks ...outbox.TaskSpec) (got []outbox.Enqueued) {
			for _, s := range tasks {
				got = append(got, put(t, tx, s.Type, s.Payload, s.Options...))
			}
			return got
		})
		together := do(func(tx outbox.Querier, tasks ...outbox.TaskSpec) []outbox.Enqueued {
			return putMany(t, tx, tasks...)
		})
		if alone != together {
			t.Fatalf("seed %d: one by one\n%s\n\ntogether\n%s", seed, alone, together)
		}
	}
}

// holderStates make a new task, which is ready, one that has a key in another way.
var holderStates = []string{
	`state = 'ready'`,
	`state = 'scheduled', run_at = now() + interval '9 hours', attempt = 2, last_error = 'no', timeline = '[{"event": "failed"}]'`,
	`state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()`,
}
