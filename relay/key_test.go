package relay_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// seenKeys are the keys that handlers saw, by type.
type seenKeys struct {
	mu sync.Mutex
	of map[string][]string
}

func (s *seenKeys) add(taskType, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[taskType] = append(s.of[taskType], key)
}

// A task has one key in all attempts, in the next iteration and after a redrive. Tools know it, and no
// task of another database has it.
func TestATaskHasOneKeyForLife(t *testing.T) {
	t.Parallel()
	types := map[string][]handlers.Option{"tx": nil, "group": {handlers.GroupCommit(10, 0)}, "batch": nil, "leased": nil,
		"complete": nil}
	all := map[string]bool{}
	for range 2 {
		db, reg, seen := newDatabase(t), handlers.New(), &seenKeys{of: map[string][]string{}}
		var tasks []outbox.NewTask
		for _, name := range slices.Sorted(maps.Keys(types)) {
			kind := name
			if name == "group" {
				kind = "tx"
			}
			relaytest.Register(reg, kind, name, 10, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error {
				task := tasks[0]
				seen.add(name, task.Key())
				switch {
				case task.Iterations > 0:
					return nil
				case task.Attempt > 1:
					return handlers.Dead(errAlways)
				case task.LastError != "": // redriven
					return handlers.RunAgain(0)
				}
				return errAlways
			}, append(types[name], retrySoon(), handlers.Keep(time.Hour))...)
			tasks = append(tasks, outbox.NewTask{Type: name, Payload: payload{}})
		}
		relaytest.EnqueueAll(db.DB, tasks...)
		eventually(t, time.Minute, "all tasks to be dead letters", func() bool {
			once(t, db, reg, relay.Config{})
			return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == len(types)
		})
		if got, _, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true},
			admin.Page{}); err != nil || len(got.IDs) != len(types) {
			t.Fatalf("redriven: %v, %v", got, err)
		}
		eventually(t, time.Minute, "all tasks to be done", func() bool {
			once(t, db, reg, relay.Config{})
			return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
		})
		for name := range types {
			keys := seen.of[name]
			if distinct := slices.Compact(slices.Clone(keys)); len(keys) < 4 || len(distinct) != 1 {
				t.Fatalf("%s: the handler saw the keys %q, want one in four calls", name, keys)
			}
			if all[keys[0]] {
				t.Errorf("%s: two tasks have the key %s", name, keys[0])
			}
			all[keys[0]] = true
			id := int64(db.Int(t, `SELECT task_id FROM outbox.done_task WHERE task_type = $1`, name))
			if found, err := relaytest.Admin(t, db.DB).TaskByKey(t.Context(), keys[0]); err != nil || found.TaskID != id ||
				found.Key != keys[0] {
				t.Errorf("%s: the key %s is of task %d with the key %s, %v; want task %d", name, keys[0], found.TaskID, found.Key,
					err, id)
			}
		}
		db.Do(t, `UPDATE outbox.origin SET database_id = gen_random_uuid()`)
		if _, err := relaytest.Admin(t, db.DB).TaskByKey(t.Context(), seen.of["tx"][0]); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("a task of another database is found: %v", err)
		}
	}
}

// A relay that runs while its database is adopted as a copy gives the tasks other keys soon.
func TestAnAdoptedDatabaseHasOtherKeys(t *testing.T) {
	t.Parallel()
	db, reg, seen := newDatabase(t), handlers.New(), make(chan string, 1)
	handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error {
		seen <- task.Key()
		return nil
	})
	run(t, db, reg, relay.Config{})
	half := func() string {
		relaytest.EnqueueAll(db.DB, typeLeased.New(payload{}))
		return (<-seen)[:14]
	}
	before := half()
	if want := db.Text(t, `SELECT left(database_id::text, 14) FROM outbox.identity`); before != want {
		t.Errorf("the keys begin with %s, want %s", before, want)
	}
	db.Do(t, `UPDATE outbox.origin SET database_id = gen_random_uuid()`)
	want := db.Text(t, `SELECT left(database_id::text, 14) FROM outbox.identity`)
	eventually(t, time.Minute, "the new keys", func() bool { return half() == want })
}
