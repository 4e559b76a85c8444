package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// finish writes n finished tasks of a type, of the users 0 to 4 in turn, with ids from first on.
func finish(t testing.TB, db *database, taskType string, first, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority,
		       attempt, task_type, payload, unique_key, last_error, result)
		SELECT i, now(), now() - interval '2 days', now(), now() - interval '1 day', now() + interval '1 day', 0, 1, $1,
		       jsonb_build_object('user_id', i % 5), 'key ' || i, 'error ' || i, '{"score": 1}'
		  FROM generate_series($2::int, $2::int + $3::int - 1) i`, taskType, first, n)
}

const finishedIDs = `SELECT COALESCE(string_agg(task_id::text, ' ' ORDER BY task_id), '') FROM outbox.done_task`

func TestAPurgeOfTheHistoryDeletesThoseThatPassAndNoOthers(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB, admin.Config{Actor: "ops", Tool: "test"})
		finish(t, db, "MAIL", 11, 5) // the users 1, 2, 3, 4, 0
		finish(t, db, "PAY", 21, 5)
		bury(t, db, "MAIL", "attempts", "error 11", 31, 1, 60)
		waits := enqueue(t, db, "MAIL", map[string]int{"user_id": 2})
		counts := db.Text(t, `SELECT COALESCE(jsonb_agg(l), '[]')::text FROM outbox.counter_log l`)
		user := func(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"user_id": %d}`, n)) }
		now := time.Now()
		for _, tt := range []struct {
			f    admin.Filter
			want []int64
			left string
		}{
			{admin.Filter{Type: "MAIL", Payload: user(2)}, []int64{12}, "11 13 14 15 21 22 23 24 25"},
			{admin.Filter{Payload: user(1), State: admin.StateFinished}, []int64{11, 21}, "13 14 15 22 23 24 25"},
			{admin.Filter{UniqueKey: "key 13"}, []int64{13}, "14 15 22 23 24 25"},
			{admin.Filter{Error: "error 22"}, []int64{22}, "14 15 23 24 25"},
			{admin.Filter{IDs: []int64{23, waits, 31}}, []int64{23}, "14 15 24 25"},
			{admin.Filter{OlderThan: 36 * time.Hour}, nil, "14 15 24 25"},
			{admin.Filter{Since: now}, nil, "14 15 24 25"},
			{admin.Filter{Type: "PAY", OlderThan: time.Hour, Before: now}, []int64{24, 25}, "14 15"},
			{admin.Filter{All: true}, []int64{14, 15}, ""},
		} {
			r, err := c.PurgeFinished(t.Context(), tt.f, admin.Bulk{})
			left := db.Text(t, finishedIDs)
			if !slices.Equal(r.IDs, tt.want) || r.Next != "" || err != nil || left != tt.left {
				t.Errorf("%v: got %v, %q, %v; %s are left, want %v, %s", tt.f, r.IDs, r.Next, err, left, tt.want, tt.left)
			}
		}
		others := `SELECT (SELECT count(*) FROM outbox.dead_task) + (SELECT count(*) FROM outbox.task)`
		if got := db.Int(t, others); got != 2 {
			t.Errorf("%d other tasks are left, want 2", got)
		}
		if got := db.Text(t, `SELECT COALESCE(jsonb_agg(l), '[]')::text FROM outbox.counter_log l`); got != counts {
			t.Errorf("counts changed from %s to %s", counts, got)
		}
		var audit []string
		page, err := c.Audit(t.Context(), admin.AuditQuery{})
		for _, e := range page.Entries {
			audit = append(audit, fmt.Sprintf("%s %s %s %d", e.Actor, e.Action, e.Target, e.Count))
		}
		slices.Reverse(audit)
		want := []string{
			"ops purge_finished finished tasks: type MAIL, with a payload 1",
			"ops purge_finished finished tasks: with a payload 2",
			"ops purge_finished finished tasks: of a unique key 1",
			`ops purge_finished finished tasks: error containing "error 22" 1`,
			"ops purge_finished task 23 1",
			"ops purge_finished finished tasks: type PAY, before " + now.UTC().Format(time.RFC3339) +
				", older than 1h0m0s 2",
			"ops purge_finished finished tasks: all 2",
		}
		if err != nil || !slices.Equal(audit, want) {
			t.Errorf("the audit log has\n%s\n%v, want\n%s", strings.Join(audit, "\n"), err, strings.Join(want, "\n"))
		}
	})
}

// It goes on by id, in transactions of 1,000, and waits for no lock.
func TestAPurgeOfTheHistoryGoesOnInPagesAndWaitsForNoLock(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		finish(t, db, "MAIL", 1, 2_500)
		db.Hold(t, `SELECT 1 FROM outbox.done_task WHERE task_id IN (1, 2000) FOR UPDATE`)
		var after []int
		o := admin.Bulk{Limit: 2_100, Progress: func(r admin.BulkResult) bool {
			after = append(after, len(r.IDs))
			return true
		}}
		r, err := c.PurgeFinished(t.Context(), admin.Filter{Type: "MAIL"}, o)
		if err != nil || !slices.Equal(after, []int{1000, 2000, 2100}) || r.Next == "" || !slices.IsSorted(r.IDs) {
			t.Errorf("got %d after %v, next %q, %v", len(r.IDs), after, r.Next, err)
		}
		// One with a higher id than those of the call's start stays.
		o = admin.Bulk{After: r.Next, PerSecond: 2_000, Progress: func(r admin.BulkResult) bool {
			if len(r.IDs) == 200 {
				finish(t, db, "MAIL", 5_001, 1)
			}
			return true
		}}
		r, err = c.PurgeFinished(t.Context(), admin.Filter{Type: "MAIL"}, o)
		left := db.Text(t, finishedIDs)
		if err != nil || len(r.IDs) != 398 || r.Next != "" || left != "1 2000 5001" {
			t.Errorf("got %d, next %q, %v; %s are left", len(r.IDs), r.Next, err, left)
		}
	})
}

func TestAPurgeOfTheHistoryRefusesFiltersThatItDoesNotHave(t *testing.T) {
	t.Parallel()
	c := unreachable(t)
	for want, f := range map[string]admin.Filter{
		"all tasks: set Filter.All":             {},
		"Filter.Reason: a finished task has no": {Reason: outbox.ReasonHandler},
		`Filter.State: purge_finished takes`:    {State: admin.StateDead, Type: "A"},
		"Filter.Payload: {}":                    {Payload: json.RawMessage(`{}`)},
		"Filter.OlderThan: -1s":                 {OlderThan: -time.Second},
	} {
		_, err := c.PurgeFinished(t.Context(), f, admin.Bulk{})
		if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want ErrInvalidOption with %q", f, err, want)
		}
	}
	_, err := c.PurgeFinished(t.Context(), admin.Filter{Type: "A"}, admin.Bulk{WithoutKey: true})
	if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), "Bulk.WithoutKey") {
		t.Errorf("got %v, want that WithoutKey is refused", err)
	}
}

func TestAnOperatorIsToldWhosePurgeOfTheHistoryItIs(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	finish(t, db, "MAIL", 1, 1)
	tx := begin(t, db)
	if _, err := tx.Exec(`CREATE ROLE purge_finished_reader; GRANT USAGE ON SCHEMA outbox TO purge_finished_reader;
		GRANT SELECT ON outbox.done_task TO purge_finished_reader; SET LOCAL ROLE purge_finished_reader`); err != nil {
		t.Fatal(err)
	}
	_, err := client(t, db.DB).In(tx).PurgeFinished(t.Context(), admin.Filter{Type: "MAIL"}, admin.Bulk{})
	if err == nil || !strings.Contains(err.Error(), "needs the rights of a worker or of the outbox's owner") {
		t.Errorf("got %v", err)
	}
}
