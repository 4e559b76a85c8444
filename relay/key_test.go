package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
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

// A task has one key in all attempts, in the next iteration and after a redrive. Tools know it.
func TestATaskHasOneKeyForLife(t *testing.T) {
	t.Parallel()
	db, reg, seen := newDatabase(t), handlers.New(), &seenKeys{of: map[string][]string{}}
	types := map[string]string{"tx": "tx", "group": "tx", "batch": "batch", "leased": "leased", "complete": "complete"}
	for name, kind := range types {
		options := []handlers.Option{retrySoon(), handlers.Retention(time.Hour)}
		if name == "group" {
			options = append(options, handlers.GroupCommit(10, 0))
		}
		relaytest.Register(reg, kind, name, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
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
		}, options...)
		db.Enqueue(t, name, 1)
	}
	client := relaytest.Admin(t, db.DB)
	runUntil := func(query string, want int) {
		eventually(t, time.Minute, query, func() bool {
			once(t, db, reg, relay.Config{})
			return db.Int(t, query) == want
		})
	}
	runUntil(`SELECT count(*) FROM outbox.dead_task`, len(types))
	got, err := client.Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{})
	if err != nil || len(got.IDs) != len(types) {
		t.Fatalf("redriven: %v, %v", got, err)
	}
	runUntil(`SELECT count(*) FROM outbox.task`, 0)
	all := map[string]bool{}
	for name := range types {
		keys := seen.of[name]
		if len(keys) < 4 || len(slices.Compact(slices.Clone(keys))) != 1 || all[keys[0]] {
			t.Fatalf("%s: the handler saw the keys %q, want one of its own in four calls", name, keys)
		}
		all[keys[0]] = true
		id := int64(db.Int(t, `SELECT task_id FROM outbox.done_task WHERE task_type = $1`, name))
		if found, err := client.TaskByKey(t.Context(), keys[0]); err != nil || found.ID != id || found.Key != keys[0] {
			t.Errorf("%s: the key %s is of %+v, %v; want task %d", name, keys[0], found, err, id)
		}
	}
	db.Do(t, `UPDATE outbox.origin SET database_id = gen_random_uuid()`)
	if _, err := client.TaskByKey(t.Context(), seen.of["tx"][0]); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("a task of another database is found: %v", err)
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
