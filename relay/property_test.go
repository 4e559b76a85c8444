package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"pgregory.net/rapid"
)

// modelTask is what the model knows of a task that is to do, or of a dead letter.
type modelTask struct {
	taskType, end string
	key, unique   string // an ordering key, a unique key
	attempt       int
	due           bool
}

// model is the naive outbox.
type model struct {
	tasks, dead map[int64]*modelTask
	unique      map[string]int64 // the task that has a unique key, or had it last
	first       map[string]int64 // of an ordering key
	effects     map[int64]int
	paused      map[string]bool
	finished    map[string]int
	failed      map[string]int
}

// run is a RunOnce: each task that is due runs once, as what does not end it puts it off.
func (m *model) run() {
	m.promoteHeads()
	ran := map[int64]bool{}
	for again := true; again; {
		again = false
		for _, id := range slices.Sorted(maps.Keys(m.tasks)) {
			task := m.tasks[id]
			if !task.due || m.paused[task.taskType] || ran[id] || task.key != "" && m.first[task.taskType+task.key] != id {
				continue
			}
			ran[id], again = true, true
			m.runOne(id, task)
			m.promoteHeads()
			break
		}
	}
}

func (m *model) promoteHeads() {
	for _, id := range slices.Sorted(maps.Keys(m.tasks)) {
		if key := m.tasks[id].taskType + m.tasks[id].key; m.tasks[id].key != "" && m.tasks[m.first[key]] == nil {
			m.first[key] = id
		}
	}
}

func (m *model) runOne(id int64, task *modelTask) {
	task.due = false
	switch task.end {
	case "ok", "discard":
		m.finished[task.taskType]++
		delete(m.tasks, id)
	case "error", "panic", "dead":
		task.attempt++
		m.failed[task.taskType]++
		if task.attempt == 2 || task.end == "dead" {
			m.dead[id] = task
			delete(m.tasks, id)
		}
	case "again":
		task.attempt = 0
	}
	if task.end == "ok" || task.taskType == "TX" && (task.end == "discard" || task.end == "again") {
		m.effects[id]++
	}
}

// String is what the tables say where they are as the model is.
func (m *model) String() string {
	out := ""
	for _, place := range []map[int64]*modelTask{m.tasks, m.dead} {
		for _, id := range slices.Sorted(maps.Keys(place)) {
			out += fmt.Sprintf("%d %s %s attempt %d; ", id, place[id].taskType, place[id].end, place[id].attempt)
		}
		out += "| "
	}
	for _, id := range slices.Sorted(maps.Keys(m.effects)) {
		out += fmt.Sprintf("%d: %d, ", id, m.effects[id])
	}
	return out
}

const modelSQL = `SELECT concat(
	(SELECT string_agg(format('%s %s %s attempt %s; ', task_id, task_type, payload->>'End', attempt), '' ORDER BY task_id)
	FROM outbox.task), '| ',
	(SELECT string_agg(format('%s %s %s attempt %s; ', task_id, task_type, payload->>'End', attempt), '' ORDER BY task_id)
	FROM outbox.dead_task), '| ',
	(SELECT string_agg(format('%s: %s, ', task_id, n), '' ORDER BY task_id)
	FROM (SELECT task_id, count(*) AS n FROM effect GROUP BY 1) e))`

// machine is the outbox and its model.
type machine struct {
	model
	t     *testing.T
	db    *database
	admin *admin.Client
}

func (m *machine) enqueue(rt *rapid.T) {
	task := &modelTask{taskType: rapid.SampledFrom(destinyTypes).Draw(rt, "type"),
		end: rapid.SampledFrom(destinies).Draw(rt, "end"), due: true}
	opts := []outbox.Option{outbox.Priority(rapid.IntRange(-2, 2).Draw(rt, "priority"))}
	if rapid.Bool().Draw(rt, "later") {
		task.due = false
		opts = append(opts, outbox.After(time.Hour))
	}
	key, conflict := "", 0
	switch rapid.IntRange(0, 2).Draw(rt, "kind") {
	case 1:
		task.key = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "ordering key")
		opts = append(opts, outbox.OrderedBy(task.key))
	case 2:
		key = task.taskType + rapid.SampledFrom([]string{"c", "d"}).Draw(rt, "unique key")
		conflict = rapid.IntRange(0, 2).Draw(rt, "on conflict")
		opts = append(opts, outbox.Unique(key),
			[]outbox.Option{outbox.OnConflict(outbox.ConflictSkip), outbox.OnConflict(outbox.ConflictReplace),
				outbox.OnConflict(outbox.ConflictReschedule)}[conflict])
	}
	var got outbox.Enqueued
	m.db.inTx(m.t, func(tx *sql.Tx) (err error) {
		got, err = outbox.Enqueue(context.Background(), tx, task.taskType, destiny{task.end}, opts...)
		return err
	})
	want, holder := outbox.OutcomeCreated, m.tasks[m.unique[key]]
	switch {
	case key == "" || holder == nil:
		m.tasks[got.ID] = task
		if task.unique = key; key != "" {
			m.unique[key] = got.ID
		}
	case conflict == 0:
		want = outbox.OutcomeSkipped
	default:
		want, holder.due = outbox.OutcomeUpdated, task.due
		if conflict == 1 {
			holder.end, holder.attempt = task.end, 0
		}
	}
	if got.Outcome != want || key != "" && m.unique[key] != got.ID {
		rt.Fatalf("Enqueue under %q: got %v of task %d, want %v of task %d", key, got.Outcome, got.ID, want,
			m.unique[key])
	}
}

func (m *machine) cancel(rt *rapid.T) {
	known := append(slices.Sorted(maps.Keys(m.tasks)), slices.Sorted(maps.Keys(m.dead))...)
	if len(known) == 0 {
		rt.Skip()
	}
	id, want := rapid.SampledFrom(known).Draw(rt, "task"), outbox.CancelNotFound
	if m.tasks[id] != nil {
		want = outbox.CancelRemoved
	}
	m.db.inTx(m.t, func(tx *sql.Tx) error {
		got, err := outbox.Cancel(context.Background(), tx, id)
		if err == nil && got != want {
			err = fmt.Errorf("cancel of task %d: got %v, want %v", id, got, want)
		}
		return err
	})
	delete(m.tasks, id)
}

func (m *machine) pause(rt *rapid.T) {
	of, paused := rapid.SampledFrom(destinyTypes).Draw(rt, "type"), rapid.Bool().Draw(rt, "paused")
	m.paused[of] = paused
	m.db.inTx(m.t, func(tx *sql.Tx) error {
		if paused {
			return m.admin.In(tx).PauseType(context.Background(), of)
		}
		return m.admin.In(tx).ResumeType(context.Background(), of)
	})
}

func (m *machine) redrive(rt *rapid.T) {
	if len(m.dead) == 0 {
		rt.Skip()
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.dead))).Draw(rt, "dead letter")
	task, want := m.dead[id], admin.BulkResult{IDs: []int64{id}}
	withoutKey := rapid.Bool().Draw(rt, "without its key")
	if held := m.tasks[m.unique[task.unique]] != nil; held && withoutKey {
		task.unique = ""
	} else if held {
		want = admin.BulkResult{Skipped: []int64{id}}
	}
	one := admin.Filter{IDs: []int64{id}}
	got, err := m.admin.Redrive(context.Background(), one, admin.Bulk{WithoutKey: withoutKey})
	must(err)
	if !reflect.DeepEqual(got, want) {
		rt.Fatalf("redrive of task %d: got %v, want %v", id, got, want)
	}
	if want.IDs == nil {
		return
	}
	task.attempt, task.due = 0, true
	if task.unique != "" {
		m.unique[task.unique] = id
	}
	if key := task.taskType + task.key; m.first[key] == id { // it comes back behind others
		delete(m.first, key)
	}
	m.tasks[id] = task
	delete(m.dead, id)
}

func (m *machine) purge(rt *rapid.T) {
	of := rapid.SampledFrom(destinyTypes).Draw(rt, "type")
	_, err := m.admin.Purge(context.Background(), admin.Filter{Type: of}, admin.Bulk{})
	must(err)
	maps.DeleteFunc(m.dead, func(_ int64, task *modelTask) bool { return task.taskType == of })
}

func (m *machine) runOnce(*rapid.T) {
	r, err := relay.New(m.db.DB, destined(), relay.Config{Workers: 2, Logger: discard()})
	must(err)
	must(r.RunOnce(context.Background()))
	m.run()
}

func (m *machine) passTime(*rapid.T) {
	m.db.Do(m.t, `UPDATE outbox.task SET run_at = now() WHERE run_at > now()`)
	for _, task := range m.tasks {
		task.due = true
	}
}

// check compares the tables and Stats with the model.
func (m *machine) check(rt *rapid.T) {
	if got := m.db.Text(m.t, modelSQL); got != m.String() {
		rt.Fatalf("the tables say\n%s\nwant\n%s\n%s", got, m, m.db.Dump(m.t))
	}
	if n := m.db.Int(m.t, invariants.Miscounted); n != 0 {
		rt.Fatal("I9: the counts are not those of the rows")
	}
	stats, err := outbox.Stats(context.Background(), m.db.DB)
	must(err)
	for _, of := range destinyTypes {
		s := outbox.TypeStats{}
		for _, one := range stats {
			if one.Type == of {
				s = one
			}
		}
		count := func(in map[int64]*modelTask) (n int) {
			for _, task := range in {
				if task.taskType == of {
					n++
				}
			}
			return n
		}
		got := []int{int(s.Ready + s.Scheduled + s.Retrying + s.Waiting), int(s.Leased), int(s.Dead),
			int(s.Finished), int(s.Failed)}
		if want := []int{count(m.tasks), 0, count(m.dead), m.finished[of], m.failed[of]}; !slices.Equal(got, want) {
			rt.Fatalf("%s: Stats say to do, leased, dead, finished, failed %v, want %v", of, got, want)
		}
	}
}

// Whatever is done to the outbox, one thing after the other: each task is where a naive model has
// it, with as many attempts, its effects
// are there once, and the counts are right.
func TestTheOutboxIsWhatANaiveModelOfItIs(t *testing.T) {
	t.Parallel()
	if !relaytest.Long && flag.Lookup("rapid.checks").Value.String() == "100" { // nobody has chosen another number
		if err := flag.Set("rapid.checks", "15"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set("rapid.checks", "100") })
	}
	db := newDatabase(t)
	rapid.Check(t, func(rt *rapid.T) {
		db.Do(t, emptyAll+`DELETE FROM effect`)
		m := &machine{t: t, db: db, admin: relaytest.Admin(t, db.DB),
			model: model{map[int64]*modelTask{}, map[int64]*modelTask{}, map[string]int64{}, map[string]int64{},
				map[int64]int{}, map[string]bool{}, map[string]int{}, map[string]int{}}}
		rt.Repeat(map[string]func(*rapid.T){"": m.check, "enqueue": m.enqueue, "enqueue too": m.enqueue, "cancel": m.cancel,
			"pause": m.pause, "redrive": m.redrive, "redrive too": m.redrive,
			"purge": m.purge, "run": m.runOnce, "pass time": m.passTime})
	})
}

// destiny is the payload of a task whose runs end as it says.
type destiny struct{ End string }

var destinies = []string{"ok", "error", "dead", "discard", "snooze", "retry after", "again", "panic"}

// destinyTypes have a Tx and a Leased handler.
var destinyTypes = []string{"TX", "LEASED"}

var errDestined = errors.New("destined")

func (d destiny) result() error {
	switch d.End {
	case "error":
		return errDestined
	case "dead":
		return handlers.Dead(errDestined)
	case "discard":
		return handlers.Discard(errDestined)
	case "snooze":
		return handlers.Snooze(time.Hour)
	case "retry after":
		return handlers.RetryAfter(time.Hour, errDestined)
	case "again":
		return handlers.RunAgain(time.Hour)
	case "panic":
		panic(errDestined)
	}
	return nil
}

func destined() *handlers.Registry {
	reg := handlers.New()
	retry := handlers.Backoff(constant(time.Hour))
	registerTx(reg, outbox.NewTaskType[destiny]("TX"),
		func(ctx context.Context, tx *sql.Tx, task *outbox.Task[destiny]) error {
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
			return task.Payload.result()
		}, retry, handlers.MaxAttempts(2))
	handlers.Leased(reg, outbox.NewTaskType[destiny]("LEASED"),
		func(ctx context.Context, task *outbox.Task[destiny]) error {
			if task.Payload.End != "ok" {
				return task.Payload.result()
			}
			return task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, task.Attempt) })
		}, retry, handlers.MaxAttempts(2))
	return reg
}
