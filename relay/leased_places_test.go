package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	runs "github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/relay"
)

// A place is a hint: a task that was moved is ended all the same, and one that is at its place by now is not.
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
	// The second task's place is said to be that of the third one, which has the same token and goes on. Of the last two, one is where its
	// claim had it, but has the token of another claim, as has the one whose place is not known.
	ids, places := pq.Array([]int{first, first + 1, first + 3, first + 4}), `{"`+old+`","`+place(2)+`","`+place(3)+`","(0,0)"}`
	lost, err := db.Query(runs.FinishSQL, ids, places, pq.Array([]string{someUUID, strings.Replace(someUUID, "0", "1", 1)}), "{1,1,2,2}")
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	var got []int
	for lost.Next() {
		var id int
		if err := lost.Scan(&id); err != nil {
			t.Fatal(err)
		}
		got = append(got, id-first)
	}
	if fmt.Sprint(got) != "[3 4]" {
		t.Errorf("lost: tasks %v, want [3 4], whose token is another", got)
	}
	if left := db.Text(t, `SELECT string_agg((task_id - $1)::text, ' ' ORDER BY task_id) FROM outbox.task`, first); left != "2 3 4" {
		t.Errorf("left: %s, want 2 3 4", left)
	}
}

// A claim's tasks come as lines of one text.
func TestLeasedTasksArriveAsTheyWereEnqueued(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	type odd struct{ Text string }
	texts := []string{"", "a\tb\nc\r\\n\\t\"'$1", strings.Repeat("é\t", 40_000), "\u2028\u0001 end"}
	kind := outbox.NewTaskType[odd]("ODD")
	for i, text := range texts {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kind.Enqueue(t.Context(), tx, odd{text}, outbox.Headers(map[string]string{"n": fmt.Sprint(i) + "\t\n"})); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	db.Do(t, `UPDATE outbox.task SET last_error = E'one\ttwo\nthree', created_at = run_at - interval '1 hour'`)
	seen := make(chan outbox.Task[odd], len(texts))
	reg := handlers.New()
	handlers.Leased(reg, kind, func(_ context.Context, task *outbox.Task[odd]) error {
		seen <- *task
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 10})
	close(seen)
	got := map[string]outbox.Task[odd]{}
	for task := range seen {
		got[task.Payload.Text] = task
	}
	for i, text := range texts {
		task, ok := got[text]
		if !ok {
			t.Errorf("the payload of task %d did not arrive", i)
			continue
		}
		if task.LastError != "one\ttwo\nthree" || task.Headers["n"] != fmt.Sprint(i)+"\t\n" || task.RunAt.Sub(task.CreatedAt).Hours() != 1 || task.Attempt != 1 {
			j, _ := json.Marshal(task)
			t.Errorf("task %d: %.300s", i, j)
		}
	}
}

// More than one text can hold is claimed one by one.
func TestALeasedClaimThatIsTooLargeIsMadeSmaller(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 20)
	c := db.counted(t)
	c.arm(claimLeases, fault{code: "54000"})
	once(t, c.database, leased(together(1)), relay.Config{Workers: 20})
	if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 || !c.fired() {
		t.Errorf("%d tasks are left, the fault was met: %v", n, c.fired())
	}
}
