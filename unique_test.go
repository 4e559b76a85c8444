package outbox_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// holders are the states that the task which has a key can be in, how it gets there, and whether it
// then waits or runs. A claim that stays open is rolled back after the test.
var holders = []struct {
	name          string
	waits, runs   bool
	become        []string
	inTransaction bool
	options       []outbox.Option
}{
	{name: "ready", waits: true},
	{name: "scheduled", waits: true, options: []outbox.Option{outbox.After(time.Hour)}},
	{name: "leased", runs: true, become: []string{lease}},
	{name: "claimed by a Tx handler that runs", runs: true, inTransaction: true,
		become: []string{`DELETE FROM outbox.task WHERE task_id = $1`}},
	{name: "written back for a retry", waits: true,
		become: []string{`WITH gone AS (DELETE FROM outbox.task WHERE task_id = $1 RETURNING *)
		INSERT INTO outbox.task (task_id, task_type, state, run_at, attempt, payload, priority, unique_key, unique_until_done) OVERRIDING SYSTEM VALUE
		SELECT task_id, task_type, 'scheduled', now() + interval '1 hour', 1, payload, priority, unique_key, unique_until_done FROM gone`}},
	{name: "canceled while it ran, until its relay removes it", become: []string{lease, `SELECT outbox.cancel_task($1)`,
		`UPDATE outbox.task SET state = 'scheduled', relay_id = NULL, lease_token = NULL WHERE task_id = $1`}},
	{name: "dead", become: []string{bury}},
	{name: "done", become: []string{`DELETE FROM outbox.task WHERE task_id = $1`}},
}

func TestWhatAKeyDoesInEachStateOfItsTask(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for mode, unique := range map[string]outbox.Option{
		"Unique":                  outbox.Unique("key"),
		"Unique UntilDone":        outbox.Unique("key", outbox.UntilDone()),
		"UniquePayload":           outbox.UniquePayload(),
		"UniquePayload UntilDone": outbox.UniquePayload(outbox.UntilDone()),
		"Unique For":              outbox.Unique("key", outbox.For(time.Hour)),
		"UniquePayload For":       outbox.UniquePayload(outbox.For(time.Hour)),
		"Unique For a moment":     outbox.Unique("key", outbox.For(time.Microsecond)),
	} {
		untilDone, kept := strings.HasSuffix(mode, "UntilDone"), strings.HasSuffix(mode, "For")
		for name, onConflict := range map[string]outbox.Option{"skip": outbox.OnConflict(outbox.ConflictSkip),
			"replace": outbox.OnConflict(outbox.ConflictReplace), "reschedule": outbox.OnConflict(outbox.ConflictReschedule)} {
			for _, h := range holders {
				t.Run(mode+"/"+name+"/"+h.name, func(t *testing.T) {
					taskType := newType()
					first := d.enqueue(t, taskType, "old",
						append(h.options, unique, outbox.Priority(1), outbox.Headers(map[string]string{"h": "old"}))...)
					q := outbox.Querier(d.db)
					if h.inTransaction {
						q = begin(t, d.db)
					}
					for _, statement := range h.become {
						exec(t, q, statement, first.ID)
					}
					before := rows(t, d.db, taskType)
					payload := "new"
					if strings.HasPrefix(mode, "UniquePayload") {
						payload = "old"
					}
					opts := []outbox.Option{unique, outbox.Priority(2), outbox.Headers(map[string]string{"h": "new"}),
						outbox.After(2 * time.Hour), onConflict}
					tx := begin(t, d.db)
					exec(t, tx, `SET LOCAL lock_timeout = '1ms'`) // any wait for a lock is an error
					got := put(t, tx, taskType, payload, opts...)
					end(t, tx.Commit)
					conflict := h.waits || untilDone && h.runs || kept
					want := outbox.OutcomeCreated
					switch {
					case conflict && h.waits && (name == "replace" || name == "reschedule"):
						want = outbox.OutcomeUpdated
					case conflict:
						want = outbox.OutcomeSkipped
					}
					if got.Outcome != want || conflict != (got.ID == first.ID) {
						t.Fatalf("got %v, want %v by task %d: %v", got, want, first.ID, conflict)
					}
					after := rows(t, d.db, taskType)
					if (want == outbox.OutcomeCreated) != (len(after) == len(before)+1) {
						t.Fatalf("got %d tasks after %d", len(after), len(before))
					}
					if want == outbox.OutcomeCreated {
						return
					}
					if len(before) == 0 {
						return // it is gone
					}
					a, b := after[0], before[0]
					if (a.Payload != b.Payload || a.Priority != b.Priority ||
						a.Headers != b.Headers) != (want == outbox.OutcomeUpdated && name == "replace") {
						t.Errorf("%s: got %+v from %+v", name, a, b)
					}
					if !a.RunAt.Equal(b.RunAt) != (want == outbox.OutcomeUpdated) || want == outbox.OutcomeUpdated &&
						(a.State != "scheduled" || time.Until(a.RunAt) < 119*time.Minute) {
						t.Errorf("%s: got %s at %v from %s at %v", name, a.State, a.RunAt, b.State, b.RunAt)
					}
					if replaced := want == outbox.OutcomeUpdated &&
						name == "replace"; (a.Attempt != b.Attempt) != (replaced && b.Attempt > 0) ||
						!a.CreatedAt.Equal(b.CreatedAt) {
						t.Errorf("%s: got %+v from %+v", name, a, b)
					}
				})
			}
		}
	}
}

func TestUniqueKeys(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{
		{"a_key_is_one_statement_and_says_what_came_of_it", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			first := put(t, tx, name, 1, outbox.Unique("k"))
			second := put(t, tx, name, 2, outbox.Unique("k"))
			third := put(t, tx, name, 3, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictReplace))
			if first.Outcome != outbox.OutcomeCreated || second.Outcome != outbox.OutcomeSkipped || third.Outcome != outbox.OutcomeUpdated {
				t.Errorf("got %v, %v and %v, want one created, skipped and updated", first, second, third)
			}
			if tx.statements != 3 {
				t.Errorf("got %d statements, want 3", tx.statements)
			}
			if got := one(t, tx, name); got.Payload != "3" || got.ID != second.ID || got.ID != third.ID {
				t.Errorf("got task %d with payload %s of %v, %v", got.ID, got.Payload, second, third)
			}
			if other := put(t, tx, newType(), 1, outbox.Unique("k")); other.Outcome != outbox.OutcomeCreated {
				t.Errorf("another type: %v", other)
			}
		}},
	})
}

func TestEqualPayloadsHaveEqualKeysAndOthersDoNot(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	groups := [][]string{
		{`{"a":1,"bb":[1.5,{"x":null}]}`, `{ "bb" : [15e-1, {"x":null}], "a":1.0 }`,
			`{"a":2,"bb":[1.50,{"x":null}],"a":1.000}`},
		{`"1.50"`}, {`"1.5"`}, {`1.5`, `1.50`}, {`"a\\\"1.0"`}, {`"a\\\"1"`}, {`["x", 1.0]`, `["x",1]`},
		{`["x\"", 1.0]`, `["x\"",1]`},
		{`1.005`, `1.0050`}, {`15`}, {`0`, `-0`, `0.00`, `-0.0`}, {`100`, `1e2`, `100.0`}, {`10`}, {`1`}, {`[[1]]`},
		{`[1]`}, {`{}`}, {`[]`}, {`null`}, {`""`},
		{`"é"`, `"\u00e9"`}, {`-1.20`, `-1.2`}, {`1.02030`, `1.0203`}, {`{"1.0":1}`}, {`{"1.00":1}`}, {`0.001`},
		{`0.0010001`, `0.00100010`},
	}
	var tasks []outbox.TaskSpec
	var group []int
	for g, forms := range groups {
		for _, f := range forms {
			tasks = append(tasks, outbox.TaskSpec{Type: "T", Payload: json.RawMessage(f),
				Options: []outbox.Option{outbox.UniquePayload()}})
			group = append(group, g)
		}
	}
	rand.Shuffle(len(tasks), func(i, j int) {
		tasks[i], tasks[j], group[i], group[j] = tasks[j], tasks[i], group[j],
			group[i]
	})
	tx := begin(t, d.db)
	got := putMany(t, tx, tasks...)
	holder := map[int]int64{}
	for i, g := range got {
		if id, ok := holder[group[i]]; ok && (id != g.ID || g.Outcome != outbox.OutcomeSkipped) || !ok &&
			g.Outcome != outbox.OutcomeCreated {
			t.Errorf("%s: got %v", tasks[i].Payload, g)
		}
		holder[group[i]] = g.ID
	}
	wantTasks(t, tx, "T", len(groups))
	// The oracle is PostgreSQL's own equality.
	if n := scan[int](t, tx, `SELECT count(*) FROM outbox.task a, outbox.task b WHERE a.task_id < b.task_id
		AND a.payload = b.payload`); n > 0 {
		t.Errorf("%d pairs of tasks have equal payloads", n)
	}
}

func TestPlainSQLWithAKeySkips(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, c := range []struct {
		payload, key string
		created      bool
	}{{"1", "k", true}, {"2", "k", false}, {"1", "l", true}, {`{"n":1}`, "$payload", true},
		{`{"n":1.0}`, "$payload", false}, {`{"n":2}`, "$payload", true}} {
		before := len(rows(t, d.db, "T"))
		exec(t, d.db, `INSERT INTO outbox.task (task_type, payload, unique_key) VALUES ('T', $1::jsonb, $2)`, c.payload,
			c.key)
		if created := len(rows(t, d.db, "T")) > before; created != c.created {
			t.Errorf("%s under %s: created is %v, want %v", c.payload, c.key, created, c.created)
		}
	}
	// Rows of one statement see those before them.
	exec(t, d.db, `INSERT INTO outbox.task (task_type, payload, unique_key) SELECT 'M', to_jsonb(n), (n % 3)::text
		FROM generate_series(1, 9) n`)
	wantTasks(t, d.db, "M", 3)
	for _, outcome := range []string{"created", "updated"} {
		const replace = `INSERT INTO outbox.keyed_task (task_type, unique_key, on_conflict) VALUES ('V', 'k', 'replace')
			RETURNING task_id || ' ' || outcome`
		got := scan[string](t, d.db, replace)
		if id := one(t, d.db, "V").ID; got != fmt.Sprint(id, " ", outcome) {
			t.Errorf("got task %s, want %d %s", got, id, outcome)
		}
	}
	for statement, want := range map[string]string{
		`INSERT INTO outbox.task (task_type, unique_key)
			VALUES ('T', '')`: "unique_key_length_check",
		`INSERT INTO outbox.task (task_type, unique_key)
			VALUES ('T', repeat('k', 257))`: "unique_key_length_check",
		`INSERT INTO outbox.task (task_type, unique_key)
			VALUES ('T', '$payload:1')`: "must not begin with $payload",
		`INSERT INTO outbox.keyed_task (task_type, unique_key, on_conflict)
			VALUES ('T', 'k', 'overwrite')`: "must be skip, replace or reschedule",
	} {
		if _, err := d.db.Exec(statement); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", statement, err, want)
		}
	}
}

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
