package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
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

// victim is a relay with one kind of handler whose driver fails.
type victim struct {
	name       string
	kind       string
	tasks      int  // of each round
	failsFirst bool // the first attempt of each task

	db     *database
	faulty *faulty
	todo   []struct {
		call string
		fault
	}
}

func victims() []*victim {
	return []*victim{
		{name: "tx", kind: "tx", tasks: 1},
		{name: "tx_fails_first", kind: "tx", tasks: 1, failsFirst: true},
		{name: "batch", kind: "batch", tasks: 3},
		{name: "batch_fails_in_part", kind: "batch", tasks: 2, failsFirst: true},
		{name: "leased", kind: "complete", tasks: 1},
		{name: "leased_fails_first", kind: "complete", tasks: 1, failsFirst: true},
	}
}

// attempt is the one that succeeds, without faults.
func (v *victim) attempt() int {
	if v.failsFirst {
		return 2
	}
	return 1
}

func (v *victim) handle(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
	failed := handlers.BatchResult{}
	for _, task := range tasks {
		failing := v.failsFirst && task.Attempt == 1
		if failing {
			failed[task.ID] = errAlways
		}
		if !failing || v.kind != "batch" { // what fails in part of a batch has no effect
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
		}
	}
	if v.kind == "batch" && len(failed) > 0 {
		return failed
	}
	return failed[tasks[0].ID]
}

// Every fourth driver call of a claim fails once, with OUTBOX_TEST_LONG=1 each in each way. No
// effect of a failed handler is committed, none of a successful one twice, no task is lost, no
// attempt is counted that says nothing about the task, and the relay works on: I1, I3, I6.
func TestAnyFailureOfAnyDriverCallLeavesEachTaskWithOneEffect(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	all := victims()
	rounds := 0
	for _, v := range all {
		v.open(t)
		rounds = max(rounds, len(v.todo))
	}
	for round := range rounds { // all at the same time, as most of it is waiting
		var busy []*victim
		for _, v := range all {
			if round < len(v.todo) {
				busy = append(busy, v)
				v.faulty.arm(v.todo[round].call, v.todo[round].fault)
				v.enqueue(t)
			}
		}
		for _, v := range busy {
			v.check(t, v.todo[round].call, v.todo[round].fault)
		}
	}
}

// open starts the relay and finds out which calls there are, by four rounds without faults.
func (v *victim) open(t *testing.T) {
	v.db = newDatabase(t, "postgres")
	v.faulty = &faulty{}
	pool := v.db.through(t, v.faulty.wrap)
	reg := handlers.New()
	relaytest.Register(reg, v.kind, typeTx.Name(), 10, v.handle, retrySoon())
	told := &heard{}
	t.Cleanup(func() { told.balanced(t) }) // after the relay
	run(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond, Observers: told.observers()})
	v.enqueue(t)
	v.db.Emptied(t, 20*time.Second)
	v.faulty.record()
	var calls map[string]bool // in each of three rounds
	for range 3 {
		v.enqueue(t)
		v.db.Emptied(t, 20*time.Second)
		round := v.faulty.record()
		if calls == nil {
			calls = round
		}
		maps.DeleteFunc(calls, func(call string, _ bool) bool { _, made := round[call]; return !made })
	}
	v.db.Do(t, `TRUNCATE effect`)
	maps.DeleteFunc(calls, func(call string, _ bool) bool {
		return slices.ContainsFunc(ownTimes, func(s string) bool { return strings.Contains(call, s) })
	})
	for i, call := range slices.Sorted(maps.Keys(calls)) {
		ways := faults
		if !relaytest.Long { // each time another one
			ways = faults[i%len(faults):][:1]
		}
		for _, f := range ways {
			v.todo = append(v.todo, struct {
				call string
				fault
			}{call, f})
		}
	}
	v.todo = relaytest.Part(v.todo, len(v.todo)/8)
}

// ownTimes are in calls that come at times of their own, not with each task.
var ownTimes = []string{"connect", "ping", "see how the pool made a session", "ROLLBACK after outbox: claim",
	"heartbeat", "dead relays", "relays are dead", "no living relay", "have no row", "ran out", "reap", "take over",
	"wake-ups", "promote scheduled",
	"maintenance", "fold", "sample", "purge", "that are gone", "page of unique keys", "rows are hidden",
	"what became of running tasks", "compare", "nobody runs", "left over", "request to cancel", "canceled tasks"}

func (v *victim) enqueue(t *testing.T) {
	v.db.Enqueue(t, typeTx.Name(), v.tasks)
}

func (v *victim) check(t *testing.T, call string, f fault) {
	name := fmt.Sprintf("%s, %s: %v", v.name, call, f)
	eventually(t, 30*time.Second, name+": the tasks are done", func() bool {
		return v.faulty.fired() && v.db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	most := v.attempt()
	// What comes with the handler's own statement may be its doing, and right after it in a Complete. An
	// SQLSTATE at the end may be that of another server, by a trigger. A server that has become a
	// standby has no transaction left to commit: only a trigger of the app's can say 25006 then.
	atEnd := strings.Contains(call, "outbox: end a claim")
	if !f.infrastructure() || f.code == "25006" && strings.HasPrefix(call, "COMMIT") ||
		strings.HasPrefix(call, "INSERT") || atEnd && (f.code != "" || v.kind == "complete") {
		most++
	}
	got := v.db.Text(t, `SELECT string_agg(task_id || ' in attempt ' || attempt, ', ') FROM effect`)
	if n := v.db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt BETWEEN $1 AND $2`, v.attempt(),
		most); n != v.tasks || v.db.Int(t, `SELECT count(*) FROM effect`) != v.tasks {
		t.Errorf("%s: effects of %s; want one of %d tasks in attempt %d to %d", name, got, v.tasks, v.attempt(), most)
	}
	if n := v.db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Fatalf("%s: a dead letter\n%s", name, v.db.Dump(t))
	}
	v.db.Do(t, `TRUNCATE effect`)
}
