package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestPagesOfDeadLettersNeitherRepeatNorSkip(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 25, 60)
		// At the same moment.
		db.Do(t, `UPDATE outbox.dead_task SET died_at = (SELECT min(died_at) FROM outbox.dead_task) WHERE task_id % 2 = 0`)
		all, err := c.Tasks(t.Context(), admin.TaskQuery{Filter: admin.Filter{State: admin.StateDead}, Limit: 1000})
		if err != nil || len(all.Tasks) != 25 {
			t.Fatalf("got %d letters, %v, want 25", len(all.Tasks), err)
		}
		newer := 100
		got, _ := pages(t, 5, func(after string) ([]admin.Task, string, error) {
			if after != "" {
				newer++
				bury(t, db, "MAIL", "attempts", "boom", newer, 1, 1) // before the first page
			}
			f := admin.Filter{Type: "MAIL", State: admin.StateDead}
			return tasksOf(c.Tasks(t.Context(), admin.TaskQuery{Filter: f, After: after, Limit: 5}))
		})
		if !slices.Equal(ids(got), ids(all.Tasks)) {
			t.Errorf("pages have %v, want %v", ids(got), ids(all.Tasks))
		}
	})
}

// A search for what few have is spread over pages, each of which looks at a bounded number, and
// finds all, wherever they are: lists the latest first, redrives and purges the oldest first.
func TestPagesOfASearchFindAll(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c, ctx := client(t, db.DB), t.Context()
		bury(t, db, "MAIL", "attempts", "boom", 1, 25_000, 60_000) // 25,000 is the latest
		bury(t, db, "PAY", "handler", "rare", 30_000, 3, 10)
		want := []int64{30_002, 30_001, 30_000, 25_000, 9001, 9000, 2001, 2000, 1}
		db.Do(t, `UPDATE outbox.dead_task SET last_error = 'rare' WHERE task_id IN (1, 2000, 2001, 9000, 9001, 25000)`)
		db.Do(t, `UPDATE outbox.dead_task SET died_at = (SELECT died_at FROM outbox.dead_task WHERE task_id = 10000)
			WHERE task_id BETWEEN 10000 AND 15000`) // at one moment
		rare := admin.Filter{State: admin.StateDead, Error: "rare", Before: time.Now()}
		for limit, most := range map[int]int{1: 13 + 9, 1000: 13} { // of 2,000
			found, n := pages(t, limit, func(after string) ([]admin.Task, string, error) {
				return tasksOf(c.Tasks(ctx, admin.TaskQuery{Filter: rare, After: after, Limit: limit, MaxScan: 2000}))
			})
			if !slices.Equal(ids(found), want) || n < 13 || n > most {
				t.Errorf("by %d: %d pages have %v, want %v", limit, n, ids(found), want)
			}
		}
		counted, n := pages(t, 2000, func(after string) ([]int64, string, error) {
			n, err := c.Count(ctx, admin.TaskQuery{Filter: rare, After: after, MaxScan: 2000})
			return slices.Repeat([]int64{0}, int(n.Count)), n.Next, err
		})
		if len(counted) != 9 || n != 13 {
			t.Errorf("%d pages count %d, want 9 in 13", n, len(counted))
		}
		// By what an index tells, a list needs no bound; a count does.
		mail := admin.Filter{Type: "MAIL", State: admin.StateDead}
		letters, next, err := tasksOf(c.Tasks(ctx, admin.TaskQuery{Filter: mail, Limit: 2, MaxScan: 1}))
		if err != nil || !slices.Equal(ids(letters), []int64{25_000, 24_999}) || next != admin.PlaceOf(letters[1]) {
			t.Errorf("got %v, %q, %v", ids(letters), next, err)
		}
		count, err := c.Count(ctx, admin.TaskQuery{Filter: mail, MaxScan: 10_000})
		if err != nil || count.Count != 10_000 || !strings.HasSuffix(count.Next, ".15001") {
			t.Errorf("got %+v, %v, want the first 10,000", count, err)
		}
		for name, take := range deadTakers {
			tx := begin(t, db)
			transactions := 0
			taken, n := pages(t, 2, func(after string) ([]int64, string, error) {
				r, err := take(c.In(tx), ctx, rare, admin.Bulk{After: after, Limit: 2,
					Progress: func(admin.BulkResult) bool { transactions++; return true }})
				return r.IDs, r.Next, err
			})
			if slices.Reverse(taken); !slices.Equal(taken, want) || n != 5 || transactions < 6 || transactions > 8 {
				t.Errorf("%s: %d calls and %d transactions took %v, want %v", name, n, transactions, taken, want)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestDeadLettersAreGroupedByTypeAndError(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for n := range 4 {
		gone := fmt.Sprintf("order 1000%d: user 0197a1f2-7c11-4000-8000-00000000000%d is gone\nmore %d", n, n, n)
		bury(t, db, "A", "handler", gone, 1+n, 1, 10)
		bury(t, db, "A", "handler", fmt.Sprintf("timeout after 1234%d ms", n), 11+n, 1, 60)
	}
	bury(t, db, "B", "handler", "the answer is 404", 21, 2, 70)
	bury(t, db, "B", "handler", "the answer is 410", 23, 1, 70)
	bury(t, db, "A", "handler", "", 31, 1, 80)
	for want, f := range map[string]admin.Filter{
		"A order #: user # is gone 4, A timeout after # ms 4, " +
			"B the answer is 404 2, B the answer is 410 1, A  1": {},
		"B the answer is 404 2, B the answer is 410 1": {Type: "B"},
	} {
		f.State = admin.StateDead
		groups, err := client(t, db.DB).ErrorGroups(t.Context(), admin.TaskQuery{Filter: f})
		var got []string
		for _, g := range groups {
			got = append(got, fmt.Sprint(g.Type, " ", g.Error, " ", g.Count))
		}
		if strings.Join(got, ", ") != want || err != nil || groups[0].Latest.IsZero() {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

func TestRetryingTasksAreGroupedByError(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, last_error, run_at)
		SELECT CASE WHEN n = 9 THEN 'B' ELSE 'A' END, 'scheduled', CASE WHEN n = 8 THEN 0 ELSE 1 END,
		       'status ' || CASE WHEN n < 5 THEN 404 ELSE 410 END || ' of 1234' || n, now() + n * interval '1 s'
		  FROM generate_series(1, 9) n`)
	groups, err := client(t, db.DB).ErrorGroups(t.Context(),
		admin.TaskQuery{Filter: admin.Filter{Type: "A", State: admin.StateRetrying}})
	var got []string
	for _, g := range groups {
		got = append(got, fmt.Sprint(g.Type, " ", g.Error, " ", g.Count))
	}
	const want = "A status 404 of # 4, A status 410 of # 3"
	if strings.Join(got, ", ") != want || err != nil || groups[0].Latest.IsZero() {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := unreachable(t).ErrorGroups(t.Context(), admin.TaskQuery{}); !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("without a state: %v", err)
	}
}

// Delayed tasks that are due before them, and newer tasks, hide none.
func TestRetryingTasksAreFoundBehindOthers(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, last_error, run_at)
		SELECT 'A', 'scheduled', CASE WHEN n <= 5 THEN 1 ELSE 0 END, 'boom', now() + (1000 - n) * interval '1 min'
		  FROM generate_series(1, 500) n`)
	c := client(t, db.DB)
	for _, f := range []admin.Filter{{Type: "A"}, {}} {
		f.State = admin.StateRetrying
		q := admin.TaskQuery{Filter: f, MaxScan: 100}
		groups, err1 := c.ErrorGroups(t.Context(), q)
		n, err2 := c.Count(t.Context(), q)
		f.Error = "boom"
		page, err3 := c.Tasks(t.Context(), admin.TaskQuery{Filter: f, MaxScan: 100})
		if len(groups) != 1 || groups[0].Count != 5 || n.Count != 5 || len(page.Tasks) != 5 {
			t.Errorf("%v: groups %v, %d counted, %d listed, %v, %v, %v", f, groups, n.Count, len(page.Tasks), err1, err2, err3)
		}
	}
}

func TestFiltersSayWhichDeadLettersAreMeant(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		bury(t, db, "MAIL", "attempts", "dial tcp: connection refused", 1, 1, 50)
		bury(t, db, "MAIL", "handler", "dead: 50% of it_em \\ is wrong", 2, 1, 40)
		bury(t, db, "PAY", "lost_connections", "relay: 10 runs", 3, 1, 30)
		bury(t, db, "PAY", "committed", "connection refused", 4, 1, 20)
		now, c := time.Now(), client(t, db.DB)
		for name, tt := range map[string]struct {
			filter admin.Filter
			want   []int64
		}{
			"zero":         {admin.Filter{}, []int64{4, 3, 2, 1}},
			"all":          {admin.Filter{All: true}, []int64{4, 3, 2, 1}},
			"ids":          {admin.Filter{IDs: []int64{4, 2, 99}}, []int64{4, 2}},
			"no ids":       {admin.Filter{IDs: []int64{}}, nil},
			"type":         {admin.Filter{Type: "MAIL"}, []int64{2, 1}},
			"reason":       {admin.Filter{Reason: outbox.ReasonLostConnections}, []int64{3}},
			"error":        {admin.Filter{Error: "connection refused"}, []int64{4, 1}},
			"error with %": {admin.Filter{Error: `50% of it_em \`}, []int64{2}},
			"error with _": {admin.Filter{Error: "50_"}, nil},
			"after":        {admin.Filter{Since: now.Add(-35 * time.Minute)}, []int64{4, 3}},
			"before":       {admin.Filter{Before: now.Add(-35 * time.Minute)}, []int64{2, 1}},
			"older":        {admin.Filter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
			"together": {admin.Filter{Type: "MAIL", Reason: outbox.ReasonAttempts, Error: "refused",
				Since: now.Add(-time.Hour), Before: now, OlderThan: time.Minute}, []int64{1}},
			"ids and a type": {admin.Filter{Type: "MAIL", IDs: []int64{1, 3}}, []int64{1}},
		} {
			for _, look := range []int{0, 2000} {
				tt.filter.State = admin.StateDead
				q := admin.TaskQuery{Filter: tt.filter, MaxScan: look}
				got, next, err1 := tasksOf(c.Tasks(t.Context(), q))
				n, err2 := c.Count(t.Context(), q)
				want := admin.TaskCount{Count: int64(len(tt.want))}
				if !slices.Equal(ids(got), tt.want) || n != want || next != "" || err1 != nil || err2 != nil {
					t.Errorf("%s, look %d: got %v, %q, %v; counted %+v, %v; want %v",
						name, look, ids(got), next, err1, n, err2, tt.want)
				}
			}
		}
	})
}

// A field without a condition, or with that of another column, would let an action take tasks that it
// does not mean. It selects the same in each table, and in all together.
func TestEachFieldOfAFilterIsACondition(t *testing.T) {
	t.Parallel()
	for table, given := range map[string]map[string]any{
		"task": {"state": "leased", "leased_until": nil}, "dead_task": {"state": "dead"}, "done_task": {"state": "finished"},
	} {
		db := relaytest.Open(t, relaytest.Migrated(t))
		for n := range 2 {
			given["ordering_key"], given["group_key"] = "ordering_key "+fmt.Sprint(n+1), "group_key "+fmt.Sprint(n+1)
			given["reason"] = []outbox.Reason{outbox.ReasonHandler, outbox.ReasonCommitted}[n]
			fill(t, db, table, n+1, given)
		}
		c := client(t, db.DB)
		one, err1 := c.Task(t.Context(), 1)
		two, err2 := c.Task(t.Context(), 2)
		if err1 != nil || err2 != nil {
			t.Fatal(table, err1, err2)
		}
		at := two.EndedAt
		if at.IsZero() {
			at = two.CreatedAt
		}
		fields := map[string]admin.Filter{
			"IDs": {IDs: []int64{1}}, "Type": {Type: one.Type}, "Reason": {Reason: one.Reason}, "Error": {Error: one.LastError},
			"UniqueKey": {UniqueKey: "unique_key 1"}, "OrderingKey": {OrderingKey: "ordering_key 1"},
			"GroupKey": {GroupKey: "group_key 1"}, "Payload": {Payload: json.RawMessage(`{"n": 1}`)},
			"Since": {Since: at}, "Before": {Before: at}, "OlderThan": {OlderThan: time.Since(at) + time.Hour},
		}
		if table == "task" {
			db.Do(t, `UPDATE outbox.task SET last_error = 'last_error ' || task_id`)
		}
		for i, of := 0, reflect.TypeFor[admin.Filter](); i < of.NumField(); i++ {
			name := of.Field(i).Name
			f, ok := fields[name]
			switch {
			case name == "All" || name == "State" || name == "Reason" && table != "dead_task":
				continue
			case !ok || f.String() == "all":
				t.Fatalf("%s has no value, or is no condition", name)
			}
			want := []int64{1}
			if name == "Since" {
				want = []int64{2}
			}
			for _, f.State = range []admin.State{"", one.State} {
				for _, most := range []int{0, 1000} {
					q := admin.TaskQuery{Filter: f, MaxScan: most}
					got, _, err1 := tasksOf(c.Tasks(t.Context(), q))
					n, err2 := c.Count(t.Context(), q)
					if !slices.Equal(ids(got), want) || n.Count != 1 || err1 != nil || err2 != nil {
						t.Errorf("%s: %v: got %v, %v; counted %d, %v; want %v", table, f, ids(got), err1, n.Count, err2, want)
					}
				}
			}
		}
	}
	indexed := []admin.Filter{{}, {IDs: []int64{1}}, {Type: "A"}, {Since: time.Now()}, {Before: time.Now()},
		{OlderThan: 1}}
	for _, f := range indexed {
		if f.State = admin.StateDead; admin.Searches(f) {
			t.Errorf("%v of dead letters is a search", f)
		}
		if f.Error = "x"; !admin.Searches(f) {
			t.Errorf("%v of dead letters is no search", f)
		}
	}
}

// Each state selects its own tasks, in lists, counts and actions, with a type and without.
func TestAStateSelectsItsTasks(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type, state, attempt, ordering_key, run_at, relay_id, lease_token)
		OVERRIDING SYSTEM VALUE
		VALUES (1, 'A', 'ready', 0, NULL, now(), NULL, NULL),
			(2, 'A', 'scheduled', 0, NULL, now() + interval '1 h', NULL, NULL),
			(3, 'A', 'scheduled', 1, NULL, now() + interval '2 h', NULL, NULL),
			(4, 'A', 'waiting', 0, 'k', now(), NULL, NULL),
			(5, 'A', 'leased', 1, NULL, now(), gen_random_uuid(), gen_random_uuid()),
			(6, 'B', 'ready', 0, NULL, now(), NULL, NULL)`)
	bury(t, db, "A", "attempts", "boom", 7, 1, 60)
	fill(t, db, "done_task", 8, map[string]any{"state": "finished", "task_type": "A"})
	db.Do(t, `UPDATE outbox.task SET last_error = 'boom'; UPDATE outbox.done_task SET last_error = 'boom'`)
	c := client(t, db.DB)
	for state, want := range map[admin.State][]int64{
		admin.StateReady: {1}, admin.StateScheduled: {2}, admin.StateRetrying: {3}, admin.StateWaiting: {4},
		admin.StateLeased: {5}, admin.StateDead: {7}, admin.StateFinished: {8}, "": {8, 7, 5, 4, 3, 2, 1},
	} {
		for _, f := range []admin.Filter{{Type: "A"}, {Type: "A", Error: "boom"},
			{Error: "boom", IDs: []int64{1, 2, 3, 4, 5, 7, 8}}} {
			f.State = state
			got, next, err1 := tasksOf(c.Tasks(t.Context(), admin.TaskQuery{Filter: f}))
			n, err2 := c.Count(t.Context(), admin.TaskQuery{Filter: f})
			if !slices.Equal(ids(got), want) || next != "" || int(n.Count) != len(want) || err1 != nil || err2 != nil {
				t.Errorf("%v: got %v, %v; counted %d, %v; want %v", f, ids(got), err1, n.Count, err2, want)
			}
			if state == admin.StateFinished || state == admin.StateDead || state == "" {
				continue
			}
			r, err := c.In(begin(t, db)).Cancel(t.Context(), f, admin.Bulk{})
			if all := slices.Concat(r.IDs, r.Running); !slices.Equal(all, want) || err != nil {
				t.Errorf("%v: canceled %v, %v; want %v", f, all, err, want)
			}
		}
	}
}

// A search of tasks is spread over pages that look at a bounded number, and finds all, in lists and in
// actions.
func TestPagesOfASearchOfTasksFindAll(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	c, ctx := client(t, db.DB), t.Context()
	db.Do(t, `INSERT INTO outbox.task (task_type, last_error, run_at, state, attempt)
		SELECT 'A', CASE WHEN n IN (1, 2000, 2001, 9000, 25000) THEN 'rare' ELSE 'boom' END,
		       now() + (30000 - n) * interval '1 s', 'scheduled', 1 FROM generate_series(1, 25000) AS n`)
	want := []int64{25000, 9000, 2001, 2000, 1}
	for _, f := range []admin.Filter{{Error: "rare"}, {Error: "rare", Type: "A", State: admin.StateRetrying}} {
		got, n := pages(t, 2, func(after string) ([]admin.Task, string, error) {
			return tasksOf(c.Tasks(ctx, admin.TaskQuery{Filter: f, After: after, Limit: 2, MaxScan: 2000}))
		})
		if !slices.Equal(ids(got), want) || n < 13 {
			t.Errorf("%v: %d pages have %v, want %v", f, n, ids(got), want)
		}
	}
	slices.Reverse(want)
	transactions := 0
	r, err := c.SetPriority(ctx, admin.Filter{Error: "rare"}, 7, admin.Bulk{Progress: func(admin.BulkResult) bool {
		transactions++
		return true
	}})
	if !slices.Equal(r.IDs, want) || transactions != 3 || err != nil {
		t.Errorf("%d transactions changed %v, %v, want 3 and %v", transactions, r.IDs, err, want)
	}
	got, _ := pages(t, 2, func(after string) ([]int64, string, error) {
		r, err := c.Cancel(ctx, admin.Filter{Error: "rare"}, admin.Bulk{After: after, Limit: 2})
		return r.IDs, r.Next, err
	})
	if !slices.Equal(got, want) {
		t.Errorf("calls of two canceled %v, want %v", got, want)
	}
}
