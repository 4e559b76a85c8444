package relay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/store"
)

// A place is a hint: a task that was moved is ended all the same, and one that is at its place by
// now is not.
func TestEndsOfLeasesFollowTheTaskAndNotItsPlace(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 5)
	db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = $1, lease_token = $1`, someUUID)
	first := db.Int(t, `SELECT min(task_id) FROM outbox.task`)
	place := func(n int) string {
		return db.Text(t, `SELECT ctid::text FROM outbox.task WHERE task_id = $1`, first+n)
	}
	old := place(0)
	db.Do(t, `UPDATE outbox.task SET leased_until = clock_timestamp() + interval '1 hour' WHERE task_id = $1`, first)
	if place(0) == old {
		t.Fatal("the update has not moved the task")
	}
	// The second task's place is said to be that of the third one, which has the same token and
	// goes on. Of the last two, one is where its claim had it, but has the token of another claim,
	// as has the one whose place is not known.
	ids, places := pq.Array([]int{first, first + 1, first + 3,
		first + 4}), `{"`+old+`","`+place(2)+`","`+place(3)+`","(0,0)"}`
	db.want(t, fmt.Sprintf("%d %d", first+3, first+4), "lost, as their token is another",
		`SELECT string_agg(f::text, ' ') FROM (`+store.FinishSQL+`) f (f)`,
		ids, places, pq.Array([]string{someUUID, strings.Replace(someUUID, "0", "1", 1)}), "{1,1,2,2}")
	db.want(t, "2 3 4", "left", `SELECT string_agg((task_id - $1)::text, ' ' ORDER BY task_id) FROM outbox.task`, first)
}
