package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// row inserts a task of the type A with a state and other columns, and returns its id.
func row(t *testing.T, db *database, columns, values string) (id int64) {
	t.Helper()
	return int64(db.Int(t, `INSERT INTO outbox.task (task_type, `+columns+`) VALUES ('A', `+values+`) RETURNING task_id`))
}

const leasedRow = `'leased', 1, gen_random_uuid(), gen_random_uuid()`

func TestEachActionOnATaskOfEachState(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	for name, add := range map[string]func() int64{
		"ready":     func() int64 { return row(t, db, "priority", "0") },
		"scheduled": func() int64 { return row(t, db, "run_at", "now() + interval '1 day'") },
		"retrying": func() int64 {
			return row(t, db, "state, attempt, run_at", "'scheduled', 2, now() + interval '1 day'")
		},
		"leased":        func() int64 { return row(t, db, "state, attempt, relay_id, lease_token", leasedRow) },
		"waiting":       func() int64 { return row(t, db, "ordering_key", "'k'") },
		"group waiting": func() int64 { return row(t, db, "group_key", "'k'") },
		"group later":   func() int64 { return row(t, db, "group_key, run_at", "'k', now() + interval '1 day'") },
		"with a place": func() int64 {
			id := row(t, db, "group_key", "'p'")
			db.Do(t, `UPDATE outbox.task SET state = 'ready', group_place = 1 WHERE task_id = $1`, id)
			return id
		},
	} {
		for action, do := range map[string]func(admin.Filter) (admin.BulkResult, error){
			"cancel":  func(f admin.Filter) (admin.BulkResult, error) { return c.Cancel(t.Context(), f, admin.Bulk{}) },
			"run_now": func(f admin.Filter) (admin.BulkResult, error) { return c.RunNow(t.Context(), f, admin.Bulk{}) },
			"later": func(f admin.Filter) (admin.BulkResult, error) {
				return c.Reschedule(t.Context(), f, time.Now().Add(time.Hour), admin.Bulk{})
			},
			"past": func(f admin.Filter) (admin.BulkResult, error) {
				return c.Reschedule(t.Context(), f, time.Now().Add(-time.Hour), admin.Bulk{})
			},
			"priority": func(f admin.Filter) (admin.BulkResult, error) {
				return c.SetPriority(t.Context(), f, -7, admin.Bulk{})
			},
			"retype": func(f admin.Filter) (admin.BulkResult, error) { return c.Retype(t.Context(), f, "B", admin.Bulk{}) },
		} {
			id := add()
			const is = `SELECT COALESCE((SELECT concat_ws(' ', task_type, state, group_place, priority, attempt,
				CASE WHEN run_at <= now() THEN 'due' ELSE round(extract(epoch FROM run_at - now()) / 3600) || ' h' END)
				FROM outbox.task WHERE task_id = $1), 'gone')`
			before := db.Text(t, is, id)
			r, err := do(admin.Filter{IDs: []int64{id}})
			got, result := db.Text(t, is, id), "changed"
			switch {
			case len(r.Running) == 1:
				result = "running"
			case len(r.IDs) == 0:
				result = "none"
			}
			want, wantResult := wantAfter(name, action, before)
			if got != want || result != wantResult || err != nil {
				t.Errorf("%s of a %s task (%s): %s, %s, %v; want %s, %s", action, name, before, got, result, err, want, wantResult)
			}
			db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.cancel`)
		}
	}
}

// wantAfter is what a task is after an action, and the result.
func wantAfter(name, action, before string) (task, result string) {
	f := strings.Fields(before) // type, state, [place,] priority, attempt, due
	at := len(f) - 1
	if strings.HasSuffix(before, " h") {
		at--
	}
	state, due := &f[1], strings.Join(f[at:], " ")
	grouped := strings.HasPrefix(name, "group")
	switch {
	case name == "leased" && action == "run_now":
		return before, "none"
	case name == "leased":
		return before, "running"
	case action == "cancel":
		return "gone", "changed"
	case action == "run_now" && *state != "scheduled":
		return before, "none"
	case action == "later":
		if due = "1 h"; *state == "ready" || grouped {
			*state = "scheduled"
		}
	case action == "run_now" || action == "past":
		if due = "due"; *state == "scheduled" {
			*state = "ready"
		}
		if grouped {
			*state = "waiting"
		}
	case action == "priority":
		f[at-2] = "-7"
	case action == "retype":
		f[0] = "B"
	}
	if name == "with a place" && (action == "retype" || action == "later") { // it gives its place back
		f = slices.Delete(f, 2, 3)
		at--
		if action == "retype" {
			f[1] = "waiting"
		}
	}
	return strings.Join(append(f[:at], due), " "), "changed"
}

// I1, I2, I3, I14. Tasks with keys of each sort, which fail at times, are changed by all actions while
// relays run them: each is done once, or canceled.
func TestActionsBesideRelaysLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	fails := func(attempt int) error {
		if rand.IntN(4) == 0 {
			return fmt.Errorf("boom in attempt %d", attempt)
		}
		return nil
	}
	reg := handlers.New()
	for _, name := range []string{"OLD", "NEW"} {
		handlers.Tx(reg, outbox.NewTaskType[int](name), func(ctx context.Context, tx *sql.Tx, task *outbox.Task[int]) error {
			return errors.Join(relaytest.Effect(ctx, tx, task.ID, task.Attempt), fails(task.Attempt))
		}, handlers.MaxAttempts(1000), handlers.MaxRunningPerKey(2), relaytest.RetrySoon())
	}
	handlers.Leased(reg, outbox.NewTaskType[int]("LEASED"), func(ctx context.Context, task *outbox.Task[int]) error {
		if err := fails(task.Attempt); err != nil {
			return err
		}
		return task.Complete(ctx, func(tx *sql.Tx) error { return relaytest.Effect(ctx, tx, task.ID, task.Attempt) })
	}, handlers.MaxAttempts(1000), relaytest.RetrySoon())
	for range 2 {
		relaytest.Run(t, db.DB, reg, relay.Config{Workers: 5, PollInterval: 100 * time.Millisecond})
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	var canceled sync.Map
	var all sync.WaitGroup
	change := func(do func() (admin.BulkResult, error)) {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := do(); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	old := admin.Filter{Type: "OLD"}
	change(func() (admin.BulkResult, error) { return c.RunNow(ctx, admin.Filter{All: true}, admin.Bulk{}) })
	change(func() (admin.BulkResult, error) {
		return c.Reschedule(ctx, old, time.Now().Add(time.Duration(rand.IntN(100))*time.Millisecond), admin.Bulk{})
	})
	change(func() (admin.BulkResult, error) {
		return c.SetPriority(ctx, admin.Filter{Error: "boom"}, rand.IntN(9)-4, admin.Bulk{})
	})
	change(func() (admin.BulkResult, error) {
		some := admin.Filter{Type: "OLD", Payload: json.RawMessage(fmt.Sprint(rand.IntN(20)))}
		return c.Retype(ctx, some, "NEW", admin.Bulk{})
	})
	change(func() (admin.BulkResult, error) {
		r, err := c.Cancel(ctx, admin.Filter{Payload: json.RawMessage("19")}, admin.Bulk{})
		for _, id := range append(r.IDs, r.Running...) {
			canceled.Store(id, true)
		}
		return r, err
	})

	const n = 1500
	var enqueued []int64
	for i := range n / 10 {
		var tasks []outbox.TaskSpec
		for j := range 10 {
			spec := outbox.TaskSpec{Type: []string{"OLD", "OLD", "LEASED"}[rand.IntN(3)], Payload: (10*i + j) % 20}
			key := fmt.Sprint("key ", rand.IntN(20))
			switch rand.IntN(4) {
			case 0:
				spec.Options = []outbox.Option{outbox.OrderedBy(key)}
			case 1:
				spec.Options = []outbox.Option{outbox.GroupBy(key)}
			case 2:
				spec.Options = []outbox.Option{outbox.Unique(key)}
			}
			tasks = append(tasks, spec)
		}
		relaytest.Must(outbox.InTx(ctx, db.DB, func(tx *sql.Tx) error {
			done, err := outbox.EnqueueMany(ctx, tx, tasks)
			for _, e := range done {
				if e.Outcome == outbox.OutcomeCreated {
					enqueued = append(enqueued, e.ID)
				}
			}
			return err
		}))
	}
	relaytest.Eventually(t, time.Minute, "all tasks are done or canceled", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	stop()
	all.Wait()
	done := map[int64]bool{}
	rows, err := db.Query(`SELECT task_id, count(*) FROM effect GROUP BY 1`)
	relaytest.Must(err)
	defer rows.Close()
	for rows.Next() {
		var id int64
		var times int
		relaytest.Must(rows.Scan(&id, &times))
		if done[id] = true; times > 1 {
			t.Errorf("task %d was done %d times", id, times)
		}
	}
	relaytest.Must(rows.Err())
	for _, id := range enqueued {
		if _, ok := canceled.Load(id); !ok && !done[id] {
			t.Errorf("task %d is lost", id)
		}
	}
	db.Invariants(t)
	if found, err := c.Defects(t.Context(), admin.RepairOptions{}); err != nil || len(found) > 0 {
		t.Errorf("defects: %v, %v", found, err)
	}
}

// Relays of other processes are woken by the commit of a change, if one asks for it.
func TestAChangeWakesRelaysWithItsCommit(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	listener := pq.NewListener(db.URL, 10*time.Millisecond, time.Second, nil)
	defer listener.Close()
	relaytest.Must(errors.Join(listener.Listen("outbox"), listener.Listen("marker")))
	notified := func() (n int) {
		db.Do(t, `SELECT pg_notify('marker', '')`) // it arrives after those of earlier commits
		for {
			select {
			case got := <-listener.Notify:
				if got == nil || got.Channel == "marker" {
					return n
				}
				n++
			case <-time.After(time.Minute):
				t.Fatal("the marker did not arrive")
			}
		}
	}
	for _, asked := range []int{4102444800, 0} {
		db.Do(t, `SELECT setval('outbox.wake', $1)`, asked)
		for name, do := range map[string]func(f admin.Filter) (admin.BulkResult, error){
			"run now": func(f admin.Filter) (admin.BulkResult, error) { return c.RunNow(t.Context(), f, admin.Bulk{}) },
			"reschedule": func(f admin.Filter) (admin.BulkResult, error) {
				return c.Reschedule(t.Context(), f, time.Now(), admin.Bulk{})
			},
			"retype": func(f admin.Filter) (admin.BulkResult, error) { return c.Retype(t.Context(), f, "NEW", admin.Bulk{}) },
		} {
			id := row(t, db, "run_at", "now() + interval '1 day'")
			notified() // that of the INSERT
			want := min(asked, 1)
			if r, err := do(admin.Filter{IDs: []int64{id}}); len(r.IDs) != 1 || err != nil {
				t.Fatal(r, err)
			}
			if got := notified(); got != want {
				t.Errorf("%s: %d notifications, want %d", name, got, want)
			}
			if _, err := do(admin.Filter{IDs: []int64{id + 100}}); err != nil || notified() != 0 {
				t.Errorf("%s of no task: %v, or a notification", name, err)
			}
		}
	}
}

// A unique key goes along, unless another task of the new type has it; the old type's is free then.
func TestARetypedTaskTakesItsUniqueKeyAlong(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	enqueue := func(taskType string, payload any, o outbox.Option) (e outbox.Enqueued) {
		relaytest.Must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) (err error) {
			e, err = outbox.Enqueue(t.Context(), tx, taskType, payload, o)
			return err
		}))
		return e
	}
	free := enqueue("OLD", 1, outbox.Unique("free"))
	taken := enqueue("OLD", 1, outbox.Unique("taken"))
	enqueue("NEW", 1, outbox.Unique("taken"))
	payload := enqueue("OLD", "text", outbox.UniquePayload())
	r, err := c.Retype(t.Context(), admin.Filter{Type: "OLD"}, "NEW", admin.Bulk{})
	if !slices.Equal(r.IDs, []int64{free.ID, payload.ID}) || !slices.Equal(r.Skipped, []int64{taken.ID}) || err != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, of := range []struct {
		taskType string
		payload  any
		option   outbox.Option
		want     outbox.Outcome
	}{
		{"NEW", 2, outbox.Unique("free"), outbox.OutcomeSkipped}, {"OLD", 2, outbox.Unique("free"), outbox.OutcomeCreated},
		{"OLD", 2, outbox.Unique("taken"), outbox.OutcomeSkipped},
		{"NEW", "text", outbox.UniquePayload(), outbox.OutcomeSkipped},
		{"OLD", "text", outbox.UniquePayload(), outbox.OutcomeCreated},
	} {
		if e := enqueue(of.taskType, of.payload, of.option); e.Outcome != of.want {
			t.Errorf("an Enqueue of %s %v is %s, want %s", of.taskType, of.payload, e.Outcome, of.want)
		}
	}
	if found, err := c.Defects(t.Context(), admin.RepairOptions{}); err != nil || len(found) > 0 {
		t.Errorf("defects: %v, %v", found, err)
	}
	db.Want(t, "retype tasks: type OLD to type NEW 2",
		`SELECT string_agg(concat_ws(' ', action, target, count), '; ') FROM outbox.audit`)
}

// Enqueues with keys of both types run beside retypes of tasks with these keys: none is a deadlock.
func TestARetypeHasNoDeadlockWithEnqueues(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	var all sync.WaitGroup
	for _, to := range []string{"ZNEW", "ANEW"} {
		keys := []outbox.TaskSpec{{Type: to, Payload: 1, Options: []outbox.Option{outbox.Unique("k1")}},
			{Type: "OLD", Payload: 1, Options: []outbox.Option{outbox.Unique("k2")}},
			{Type: "OLD", Payload: 1, Options: []outbox.Option{outbox.Unique("k1")}},
			{Type: to, Payload: 1, Options: []outbox.Option{outbox.Unique("k2")}}}
		all.Go(func() {
			for range 100 {
				err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
					_, err := outbox.EnqueueMany(t.Context(), tx, keys)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 100 {
				if _, err := c.Retype(t.Context(), admin.Filter{Type: "OLD"}, to, admin.Bulk{}); err != nil {
					t.Error(err)
				}
				if _, err := c.Cancel(t.Context(), admin.Filter{Type: to}, admin.Bulk{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if found, err := c.Defects(t.Context(), admin.RepairOptions{}); err != nil || len(found) > 0 {
		t.Errorf("defects: %v, %v", found, err)
	}
}

// A relay that promotes has seen tasks under their old type.
func TestARetypeWaitsForAPromotion(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key) VALUES ('OLD', 'k')`)
	release := db.Hold(t, `SELECT FROM outbox.promote_lock FOR UPDATE`)
	done := make(chan error, 1)
	go func() {
		done <- second(client(t, db.DB).Retype(t.Context(), admin.Filter{Type: "OLD"}, "NEW", admin.Bulk{}))
	}()
	relaytest.Eventually(t, time.Minute, "the retype waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%change_tasks%'`) > 0
	})
	release()
	relaytest.Must(<-done)
	db.Want(t, "NEW waiting", `SELECT task_type || ' ' || state FROM outbox.task`)
}

// A task that has been due for long keeps its age.
func TestATaskThatIsOverdueKeepsItsTime(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	row(t, db, "run_at", "now() - interval '1 hour'")
	row(t, db, "state, attempt, run_at", "'scheduled', 1, now() - interval '1 hour'")
	c := client(t, db.DB)
	if r, err := c.RunNow(t.Context(), admin.Filter{All: true}, admin.Bulk{}); len(r.IDs) != 1 || err != nil {
		t.Error(r, err)
	}
	r, err := c.Reschedule(t.Context(), admin.Filter{All: true}, time.Now(), admin.Bulk{})
	if len(r.IDs) != 2 || err != nil {
		t.Error(r, err)
	}
	db.Want(t, "2", `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND run_at < now() - interval '59 min'`)
}

// Tasks of an ordering key run in their order in the new type; the old type's key goes on.
func TestRetypedTasksOfAKeyKeepTheirOrder(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, ordering_key)
		SELECT CASE WHEN n < 7 THEN 'OLD' ELSE 'NEW' END, to_jsonb(n), 'k' FROM generate_series(1, 8) n`)
	var mu sync.Mutex
	ran := map[string][]int{}
	reg := handlers.New()
	for _, name := range []string{"OLD", "NEW"} {
		handlers.Tx(reg, outbox.NewTaskType[int](name), func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
			mu.Lock()
			defer mu.Unlock()
			ran[name] = append(ran[name], task.Payload)
			return nil
		})
	}
	even := admin.Filter{Type: "OLD", IDs: []int64{1, 2, 4, 6}}
	if r, err := c.Retype(t.Context(), even, "NEW", admin.Bulk{}); len(r.IDs) != 4 || err != nil {
		t.Fatal(r, err)
	}
	relaytest.Run(t, db.DB, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, time.Minute)
	if got := fmt.Sprint(ran); got != "map[NEW:[1 2 4 6 7 8] OLD:[3 5]]" {
		t.Errorf("got %s", got)
	}
}

func TestAPayloadIsReplacedUnlessTheTaskRuns(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	waits := row(t, db, "payload, unique_key", `'{"a": 1}', '$payload'`)
	leased := row(t, db, "state, attempt, relay_id, lease_token", leasedRow)
	locked := row(t, db, "payload", `'1'`)
	bury(t, db, "A", "attempts", "boom", 1000, 1, 60)
	bury(t, db, "A", "attempts", "boom", 1001, 1, 60)
	coded := row(t, db, "payload, headers", `'"secret"', '{"outbox-codec": "c"}'`)
	bury(t, db, "A", "attempts", "boom", 1002, 1, 60)
	db.Do(t, `UPDATE outbox.dead_task SET headers = '{"outbox-codec": "c"}' WHERE task_id = 1002`)
	db.Hold(t, `SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, locked)
	db.Hold(t, `SELECT FROM outbox.dead_task WHERE task_id = 1001 FOR UPDATE`)
	for id, want := range map[int64]error{
		waits: nil, 1000: nil, 1001: admin.ErrRunning, leased: admin.ErrRunning, locked: admin.ErrRunning,
		9999: admin.ErrNotFound, coded: outbox.ErrInvalidPayload, 1002: outbox.ErrInvalidPayload,
	} {
		if err := c.SetPayload(t.Context(), id, map[string]int{"secret": 7}); !errors.Is(err, want) {
			t.Errorf("task %d: %v, want %v", id, err, want)
		}
	}
	for _, id := range []int64{waits, 1000} {
		if p, err := c.Payload(t.Context(), id); string(p.Payload) != `{"secret": 7}` || err != nil {
			t.Errorf("task %d has the payload %s, %v", id, p.Payload, err)
		}
	}
	db.Want(t, "set_payload task "+fmt.Sprint(waits)+" 1, set_payload task 1000 1",
		`SELECT string_agg(concat_ws(' ', action, target, count), ', ' ORDER BY target COLLATE "C") FROM outbox.audit`)
}

// What may be secret is in no entry of the audit log, nor is it in a filter's words.
func TestAFilterDoesNotRepeatSecrets(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	row(t, db, "payload, unique_key, group_key", `'{"mail": "secret"}', 'secret', 'secret'`)
	f := admin.Filter{UniqueKey: "secret", GroupKey: "secret", Payload: json.RawMessage(`{"mail": "secret"}`)}
	if r, err := c.SetPriority(t.Context(), f, 3, admin.Bulk{}); len(r.IDs) != 1 || err != nil {
		t.Fatal(r, err)
	}
	db.Want(t, "tasks: of a unique key, of a group key, with a payload to priority 3", `SELECT target FROM outbox.audit`)
}
