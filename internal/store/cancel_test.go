package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
)

// Task n has the id n. A request to cancel is there for each but the last, and for a task that is gone.
const canceledTasks = `
	INSERT INTO outbox.task (task_type) SELECT 'T' FROM generate_series(1, 4);
	UPDATE outbox.task SET state = 'leased', relay_id = '` + aToken + `', lease_token = '` + aToken + `' WHERE task_id = 2;
	INSERT INTO outbox.cancel (task_id) VALUES (1), (2), (3), (99);
	INSERT INTO outbox.running (task_id, token, relay_id)
	SELECT n, '` + aToken + `', '` + aToken + `' FROM generate_series(1, 4) n`

func TestRemoveCanceledRemovesTasksThatNobodyHolds(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	held, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback() }()
	if _, err := held.Exec(`SELECT FROM outbox.task WHERE task_id = 3 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`SET LOCAL lock_timeout = '5s'`); err != nil {
		t.Fatal(err)
	}
	n, err := s.RemoveCanceled(t.Context(), tx, []int64{1, 2, 3, 99})
	if err != nil || n != 2 {
		t.Errorf("%d requests are answered, want those of tasks 1 and 99; error %v", n, err)
	}
	const left = `SELECT concat((SELECT array_agg(task_id ORDER BY task_id) FROM outbox.task),
		(SELECT array_agg(task_id ORDER BY task_id) FROM outbox.cancel),
		(SELECT array_agg(task_id ORDER BY task_id) FROM outbox.running),
		(SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled'))`
	var got string
	if err := tx.QueryRow(left).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "{2,3,4}{2,3}{2,3,4}1"; got != want {
		t.Errorf("tasks, requests, runs and counts are %s, want %s", got, want)
	}
}

func TestHearTellsWhatBecameOfRunningTasks(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const other = "00000000-0000-4000-8000-000000000002"
	held, stolen, gone := Lease{2, aToken}, Lease{2, other}, Lease{99, aToken}
	h, err := s.Hear(t.Context(), conn, []int64{1, 4}, []Lease{held, stolen, gone})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(h.Asked)
	want := Heard{[]int64{1, 3, 99}, map[int64]bool{1: true, 2: true, 99: true}, map[Lease]bool{stolen: true, gone: true}}
	if fmt.Sprint(h) != fmt.Sprint(want) {
		t.Errorf("heard %v, want %v", h, want)
	}
}

func TestACanceledTaskLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	if _, err := db.Exec(canceledTasks); err != nil {
		t.Fatal(err)
	}
	if err := s.EndCanceled(context.Background(), db, &Row{ID: 2, TaskType: "T"}); err != nil {
		t.Fatal(err)
	}
	var requests, runs, counted sql.NullInt64
	const left = `SELECT (SELECT count(*) FROM outbox.cancel), (SELECT count(*) FROM outbox.running),
		(SELECT sum(tasks) FROM outbox.counter_log WHERE kind = 'canceled')`
	if err := db.QueryRow(left).Scan(&requests, &runs, &counted); err != nil {
		t.Fatal(err)
	}
	if requests.Int64 != 3 || runs.Int64 != 3 || counted.Int64 != 1 {
		t.Errorf("%d requests, %d runs, %d counted, want 3, 3, 1", requests.Int64, runs.Int64, counted.Int64)
	}
}
