package relay_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/relay"
)

// key is the place of a task in its lane.
func key(a, b outbox.Task[payload]) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID))
}

// taken are the tasks in the order in which one worker takes them: of ten claims of one task nine in
// the lane's order, and one of the task that has been due longest.
func taken(tasks []outbox.Task[payload]) (out []int64) {
	left := slices.SortedFunc(slices.Values(tasks), key)
	for n := 1; len(left) > 0; n++ {
		next := 0
		if n%10 == 0 {
			for i, task := range left {
				if byDue := cmp.Or(task.RunAt.Compare(left[next].RunAt), cmp.Compare(task.ID, left[next].ID)); byDue < 0 {
					next = i
				}
			}
		}
		out = append(out, left[next].ID)
		left = slices.Delete(left, next, next+1)
	}
	return out
}

// One worker claims priority first, then fewer attempts, then in the order of enqueueing; every
// tenth claim goes by due time. A Batch handler gets each batch in that order.
func TestALaneIsClaimedByPriorityThenAttemptsThenID(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, priority, attempt, run_at) SELECT $1, (n * 7) % 5 - 2, (n * 11) % 3,
				now() - (n * 13) % 17 * interval '1 s'
				FROM generate_series(1, 300) n`, kind)
			s := begun(t, db, kind, 300, relay.Config{Workers: 1})
			want := taken(s.tasks)
			if kind == "BATCH" { // there are fewer than ten
				want = taken(s.tasks[:0])
				for _, task := range slices.SortedFunc(slices.Values(s.tasks), key) {
					want = append(want, task.ID)
				}
			}
			if !slices.Equal(s.ids, want) {
				t.Errorf("tasks were claimed in the order %v, want %v", s.ids, want)
			}
		})
	}
}
