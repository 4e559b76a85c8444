package relay_test

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// key is the place of a task in its lane.
func key(a, b outbox.Task[payload]) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID))
}

// One worker claims priority first, then fewer attempts, then in the order of enqueueing. A Batch handler gets each
// batch in that order.
func TestALaneIsClaimedByPriorityThenAttemptsThenID(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, priority, attempt) SELECT $1, (n * 7) % 5 - 2, (n * 11) % 3 FROM generate_series(1, 300) n`, kind)
			s := begun(t, db, kind, 300, relay.Config{Workers: 1})
			if !slices.IsSortedFunc(s.tasks, key) {
				t.Errorf("tasks were claimed in another order: %v", s.tasks)
			}
		})
	}
}

// beginnings are the task types in the order in which their tasks began.
type beginnings struct {
	mu    sync.Mutex
	types []string
}

func (b *beginnings) handle(task *outbox.Task[payload]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.types = append(b.types, task.Type)
	return nil
}

// late is how many tasks of the type began after the first n of all.
func (b *beginnings) late(taskType string, n int) (late int) {
	for _, name := range b.types[n:] {
		if name == taskType {
			late++
		}
	}
	return late
}

// The base priority of a handler holds for rows that were inserted by plain SQL, too, and adds to their own. Every tenth
// choice is for the lane that has waited longest.
func TestTypesAreServedByBaseAndRowPriority(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, kind := range []string{"tx", "leased"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			var b beginnings
			for name, base := range map[string]int{"LAST": 100, "FIRST": -100, "MIDDLE": 0, "RAISED": 50} {
				kinds[kind](reg, name, b.handle, handlers.Priority(base))
			}
			const each = 100
			db.Enqueue(t, "LAST", each)
			db.Enqueue(t, "MIDDLE", each)
			db.Enqueue(t, "FIRST", each)
			db.Do(t, `INSERT INTO outbox.task (task_type, priority) SELECT 'RAISED', -100 FROM generate_series(1, $1::int)`, each)
			once(t, db, reg, relay.Config{Workers: 1})
			if len(b.types) != 4*each {
				t.Fatalf("%d tasks ran, want %d", len(b.types), 4*each)
			}
			// A tenth of the choices, and one wrong one for each poll, are for others.
			for i, name := range []string{"FIRST", "RAISED", "MIDDLE"} {
				if late := b.late(name, (i+1)*each+each/2); late > 0 {
					t.Errorf("%d tasks of type %s began after more than half as many again as should", late, name)
				}
			}
			if b.late("LAST", 2*each) == each {
				t.Error("no task of the least urgent type began before all others: it would starve")
			}
		})
	}
}

// Design: no priority starves another.
func TestAnEndlessUrgentTypeDoesNotStarveAnother(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	urgent := outbox.NewTaskType[payload]("URGENT")
	handlers.Tx(reg, urgent, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		_, err := urgent.Enqueue(ctx, tx, payload{}) // there is always another one
		return err
	}, handlers.Priority(-1000))
	other := newProbe(reg, "OTHER")
	r := run(t, db, reg, relay.Config{Workers: 2})
	db.Enqueue(t, "URGENT", 20)
	for range 10 {
		other.measure(t, db, 1, time.Millisecond)
	}
	r.Stop()
	db.Do(t, `TRUNCATE outbox.task`)
}
