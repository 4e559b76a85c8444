package admin_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
		all, err := c.DeadLetters(t.Context(), admin.DeadQuery{Limit: 1000})
		if err != nil || len(all.Tasks) != 25 {
			t.Fatalf("got %d letters, %v, want 25", len(all.Tasks), err)
		}
		newer := 100
		got, _ := pages(t, 5, func(after string) ([]admin.Task, string, error) {
			if after != "" {
				newer++
				bury(t, db, "MAIL", "attempts", "boom", newer, 1, 1) // before the first page
			}
			return tasksOf(c.DeadLetters(t.Context(), admin.DeadQuery{Filter: admin.DeadFilter{Type: "MAIL"}, After: after, Limit: 5}))
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
		rare := admin.DeadFilter{Error: "rare", DiedBefore: time.Now()}
		for limit, most := range map[int]int{1: 13 + 9, 1000: 13} { // of 2,000
			found, n := pages(t, limit, func(after string) ([]admin.Task, string, error) {
				return tasksOf(c.DeadLetters(ctx, admin.DeadQuery{Filter: rare, After: after, Limit: limit, MaxScan: 2000}))
			})
			if !slices.Equal(ids(found), want) || n < 13 || n > most {
				t.Errorf("by %d: %d pages have %v, want %v", limit, n, ids(found), want)
			}
		}
		counted, n := pages(t, 2000, func(after string) ([]int64, string, error) {
			n, err := c.CountDeadLetters(ctx, admin.DeadQuery{Filter: rare, After: after, MaxScan: 2000})
			return slices.Repeat([]int64{0}, int(n.Count)), n.Next, err
		})
		if len(counted) != 9 || n != 13 {
			t.Errorf("%d pages count %d, want 9 in 13", n, len(counted))
		}
		// By what an index tells, a list needs no bound; a count does.
		mail := admin.DeadFilter{Type: "MAIL"}
		letters, next, err := tasksOf(c.DeadLetters(ctx, admin.DeadQuery{Filter: mail, Limit: 2, MaxScan: 1}))
		if err != nil || !slices.Equal(ids(letters), []int64{25_000, 24_999}) || next != admin.PlaceOf(letters[1]) {
			t.Errorf("got %v, %q, %v", ids(letters), next, err)
		}
		count, err := c.CountDeadLetters(ctx, admin.DeadQuery{Filter: mail, MaxScan: 10_000})
		if err != nil || count.Count != 10_000 || !strings.HasSuffix(count.Next, ".15001") {
			t.Errorf("got %+v, %v, want the first 10,000", count, err)
		}
		for name, take := range takers {
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
	for want, f := range map[string]admin.DeadFilter{
		"A order #: user # is gone 4, A timeout after # ms 4, " +
			"B the answer is 404 2, B the answer is 410 1, A  1": {},
		"B the answer is 404 2, B the answer is 410 1": {Type: "B"},
	} {
		groups, err := client(t, db.DB).DeadGroups(t.Context(), admin.DeadQuery{Filter: f})
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
	groups, err := client(t, db.DB).RetryGroups(t.Context(), "A")
	var got []string
	for _, g := range groups {
		got = append(got, fmt.Sprint(g.Type, " ", g.Error, " ", g.Count))
	}
	const want = "A status 404 of # 4, A status 410 of # 3"
	if strings.Join(got, ", ") != want || err != nil || groups[0].Latest.IsZero() {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := unreachable(t).RetryGroups(t.Context(), ""); !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("without a type: %v", err)
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
			filter admin.DeadFilter
			want   []int64
		}{
			"zero":         {admin.DeadFilter{}, []int64{4, 3, 2, 1}},
			"all":          {admin.DeadFilter{All: true}, []int64{4, 3, 2, 1}},
			"ids":          {admin.DeadFilter{IDs: []int64{4, 2, 99}}, []int64{4, 2}},
			"no ids":       {admin.DeadFilter{IDs: []int64{}}, nil},
			"type":         {admin.DeadFilter{Type: "MAIL"}, []int64{2, 1}},
			"reason":       {admin.DeadFilter{Reason: outbox.ReasonLostConnections}, []int64{3}},
			"error":        {admin.DeadFilter{Error: "connection refused"}, []int64{4, 1}},
			"error with %": {admin.DeadFilter{Error: `50% of it_em \`}, []int64{2}},
			"error with _": {admin.DeadFilter{Error: "50_"}, nil},
			"after":        {admin.DeadFilter{DiedAfter: now.Add(-35 * time.Minute)}, []int64{4, 3}},
			"before":       {admin.DeadFilter{DiedBefore: now.Add(-35 * time.Minute)}, []int64{2, 1}},
			"older":        {admin.DeadFilter{OlderThan: 25 * time.Minute}, []int64{3, 2, 1}},
			"together": {admin.DeadFilter{Type: "MAIL", Reason: outbox.ReasonAttempts, Error: "refused",
				DiedAfter: now.Add(-time.Hour), DiedBefore: now, OlderThan: time.Minute}, []int64{1}},
			"ids and a type": {admin.DeadFilter{Type: "MAIL", IDs: []int64{1, 3}}, []int64{1}},
		} {
			for _, look := range []int{0, 2000} {
				q := admin.DeadQuery{Filter: tt.filter, MaxScan: look}
				got, next, err1 := tasksOf(c.DeadLetters(t.Context(), q))
				n, err2 := c.CountDeadLetters(t.Context(), q)
				want := admin.DeadCount{Count: int64(len(tt.want))}
				if !slices.Equal(ids(got), tt.want) || n != want || next != "" || err1 != nil || err2 != nil {
					t.Errorf("%s, look %d: got %v, %q, %v; counted %+v, %v; want %v",
						name, look, ids(got), next, err1, n, err2, tt.want)
				}
			}
		}
	})
}

// A field without a condition, or with that of another column, would let Purge delete dead letters
// that it does not mean. A field selects by the field of Task that has its name, or has a value
// here.
func TestEachFieldOfAFilterIsACondition(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	fill(t, db, "dead_task", 1, map[string]any{"state": "dead", "reason": outbox.ReasonHandler})
	fill(t, db, "dead_task", 2, map[string]any{"state": "dead", "reason": outbox.ReasonCommitted})
	c := client(t, db.DB)
	older, err1 := c.Task(t.Context(), 1)
	newer, err2 := c.Task(t.Context(), 2)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	given := map[string]admin.DeadFilter{
		"IDs": {IDs: []int64{1}}, "Error": {Error: older.LastError},
		"DiedAfter": {DiedAfter: newer.EndedAt}, "DiedBefore": {DiedBefore: newer.EndedAt},
		"OlderThan": {OlderThan: time.Since(newer.EndedAt) + time.Hour},
	}
	indexed := []string{"IDs", "Type", "DiedAfter", "DiedBefore", "OlderThan"}
	for i, of := 0, reflect.TypeFor[admin.DeadFilter](); i < of.NumField(); i++ {
		name := of.Field(i).Name
		if name == "All" {
			continue
		}
		f, ok := given[name]
		if !ok {
			value, to := reflect.ValueOf(older).FieldByName(name), reflect.ValueOf(&f).Elem().Field(i)
			if !value.IsValid() || value.Type() != to.Type() {
				t.Fatalf("there is no value of %s", name)
			}
			to.Set(value)
		}
		want := []int64{1}
		if name == "DiedAfter" {
			want = []int64{2}
		}
		if f.String() == "all" {
			t.Errorf("%s is no condition", name)
		}
		if got := admin.Searches(f); got == slices.Contains(indexed, name) {
			t.Errorf("%s: a search is %v", name, got)
		}
		got, _, err1 := tasksOf(c.DeadLetters(t.Context(), admin.DeadQuery{Filter: f}))
		n, err2 := c.CountDeadLetters(t.Context(), admin.DeadQuery{Filter: f})
		if !slices.Equal(ids(got), want) || n.Count != 1 || err1 != nil || err2 != nil {
			t.Errorf("%v: got %v, %v; counted %d, %v; want %v", f, ids(got), err1, n.Count, err2, want)
		}
	}
}

// redriven redrives tasks, and fails unless these are redriven.
func redriven(t *testing.T, c *admin.Client, tasks []int64, want ...int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it waits for no lock
	defer cancel()
	if got, err := c.Redrive(ctx, admin.DeadFilter{IDs: tasks}, admin.Bulk{}); !slices.Equal(got.IDs, want) || err != nil {
		t.Fatalf("got %v, %v, want %v", got, err, want)
	}
}

func TestARedrivenTaskStartsAgainAsItWas(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 7, 2, 60) // 8 had a limit of its own
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) VALUES (7, gen_random_uuid(), gen_random_uuid())`)
	redriven(t, c, []int64{8, 7, 99}, 7, 8)
	got := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, COALESCE(max_attempts::text, 'none'), last_error,
		priority, headers->>'trace', payload->>'n', run_at BETWEEN now() - interval '1 hour' AND now(),
		created_at < now() - interval '2 days'), ', ' ORDER BY task_id) FROM outbox.task`)
	if want := "0 none boom 3 x 7 t t, 0 5 boom 3 x 8 t t"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`) + db.Int(t, `SELECT count(*) FROM outbox.running`); n != 0 {
		t.Errorf("%d dead letters and runs are left", n)
	}
}

// I1: a trigger of the app's that drops the task must not lose it.
func TestARedriveThatDoesNotArriveIsRolledBack(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 3, 60)
	db.Do(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.task_id = 2) EXECUTE FUNCTION refuse()`)
	moved, err := c.Redrive(t.Context(), admin.DeadFilter{IDs: []int64{1, 2, 3}}, admin.Bulk{})
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 3 || err == nil || moved.IDs != nil {
		t.Errorf("%d dead letters are left, got %v, %v, want all and an error", n, moved, err)
	}
}

func TestTwoWhoRedriveTheSameShareIt(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 5000, 200)
	tx := begin(t, db)
	redriven(t, c.In(tx), []int64{1}, 1)
	redriven(t, c, []int64{1, 2}, 2)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var total atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			r, err := c.Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{})
			if err != nil {
				t.Error(err)
			}
			total.Add(int64(len(r.IDs)))
		})
	}
	all.Wait()
	// What one skipped as another held it, that one moved.
	if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM outbox.task`); total.Load() != 4998 || n != 5000 {
		t.Errorf("%d were moved and %d tasks are there, want 4998 and 5000", total.Load(), n)
	}
}

// Those whose key another task holds are left, counted apart and not noted, and pages go on behind
// them.
func TestARedriveOfAllSkipsThoseWhoseKeyAnotherTaskHolds(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "X", "attempts", "boom", 11, 6, 60)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = (ARRAY['free', 'held', 'free'])[task_id - 10],
		unique_until_done = true WHERE task_id <= 13`)
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('X', 'held')`)
	all := admin.DeadFilter{All: true}
	pages := 0
	r, err := c.Redrive(t.Context(), all, admin.Bulk{PerSecond: 20, Progress: func(r admin.BulkResult) bool {
		pages++
		return len(r.IDs)+len(r.Skipped) == 2*pages
	}})
	if !slices.Equal(r.IDs, []int64{11, 14, 15, 16}) || !slices.Equal(r.Skipped, []int64{12, 13}) || err != nil {
		t.Errorf("got %+v, %v, want 12 and 13 skipped", r, err)
	}
	left := db.Text(t, `SELECT string_agg(task_id || ' ' || unique_key, ', ' ORDER BY task_id) FROM outbox.dead_task`)
	if left != "12 held, 13 free" {
		t.Errorf("%s are left, want 12 held, 13 free", left)
	}
	taken, err := c.Redrive(t.Context(), all, admin.Bulk{WithoutKey: true})
	if len(taken.IDs) != 2 || taken.Skipped != nil || err != nil {
		t.Errorf("without their keys: got %+v, %v, want two redriven and none skipped", taken, err)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE unique_key IS NULL AND task_id IN (12, 13)`); n != 2 {
		t.Errorf("%d of the tasks 12 and 13 are there without a key, want both", n)
	}
	counts := db.Text(t, `SELECT string_agg(count::text, ' ' ORDER BY entry_id) FROM outbox.audit`)
	if counts != "1 1 2 2" {
		t.Errorf("the audit log counts %s, want 1 1 2 2", counts)
	}
}

// The one that waits for the key sees no task of the other's, as its statement began before.
func TestOfTwoRedrivesOfOneKeyAtATimeOneIsSkipped(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 2, 60)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k'`)
	db.Do(t, `INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('X', 'k', 1)`)
	tx := begin(t, db)
	redriven(t, c.In(tx), []int64{1}, 1)
	second := make(chan admin.BulkResult, 1)
	go func() {
		got, err := c.Redrive(t.Context(), admin.DeadFilter{IDs: []int64{2}}, admin.Bulk{})
		if err != nil {
			t.Error(err)
		}
		second <- got
	}()
	relaytest.Eventually(t, 20*time.Second, "the second waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%redrive%'`) > 0
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := <-second; !slices.Equal(got.Skipped, []int64{2}) {
		t.Errorf("got %v, want task 2 skipped", got)
	}
}

var takers = map[string]func(*admin.Client, context.Context, admin.DeadFilter, admin.Bulk) (admin.BulkResult, error){
	"redrive": (*admin.Client).Redrive, "purge": (*admin.Client).Purge,
}

// A call takes the oldest that pass, as many as it is told to, from where the last one ended.
func TestPagesTakeTheOldestAndGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	for name, take := range takers {
		db := relaytest.NewDatabase(t)
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 5, 60)
		bury(t, db, "PAY", "handler", "boom", 11, 5, 90)
		// From the oldest on: 11 to 15, then 1 to 5.
		at, all := "", admin.DeadFilter{All: true}
		for i, tt := range []struct {
			f     admin.DeadFilter
			limit int
			left  string // the ids that are dead letters then
			last  bool
		}{
			{all, 2, "1,2,3,4,5,13,14,15", false},
			{admin.DeadFilter{Reason: outbox.ReasonAttempts}, 1, "2,3,4,5,13,14,15", false},
			{admin.DeadFilter{Type: "PAY"}, 5, "2,3,4,5,13,14,15", true}, // they are before the place
			{admin.DeadFilter{Type: "MAIL", Error: "boom"}, 1000, "13,14,15", true},
			{all, 1000, "", true},
		} {
			r, err := take(c, t.Context(), tt.f, admin.Bulk{After: at, Limit: tt.limit})
			left := db.Text(t, `SELECT COALESCE(string_agg(task_id::text, ',' ORDER BY task_id), '') FROM outbox.dead_task`)
			if at = r.Next; left != tt.left || (at == "") != tt.last || err != nil {
				t.Fatalf("%s, page %d: %q, %v, %s are left, want %s, the last page: %t", name, i, at, err, left, tt.left, tt.last)
			}
		}
	}
}

func TestAPurgeEndsInSmallStatements(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c, old := client(t, db.DB), admin.DeadFilter{OlderThan: 20 * time.Minute}
	bury(t, db, "OLD", "attempts", "boom", 1, 10_000, 10_000)
	bury(t, db, "NEW", "attempts", "boom", 20_001, 10, 5)
	// Each statement writes down how many rows it deleted.
	db.Do(t, `CREATE TABLE deleted (n int);
		CREATE FUNCTION deleted() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO deleted SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER deleted AFTER DELETE ON outbox.dead_task REFERENCING OLD TABLE AS gone
			FOR EACH STATEMENT EXECUTE FUNCTION deleted()`)
	db.Hold(t, `SELECT 1 FROM outbox.dead_task WHERE task_id IN (1, 5000) FOR UPDATE`)
	begun, err := c.Purge(t.Context(), old, admin.Bulk{Progress: func(admin.BulkResult) bool { return false }})
	if len(begun.IDs) != 1000 || begun.Next == "" || err != nil {
		t.Errorf("Purge ended after %d, %v, want 1000", len(begun.IDs), err)
	}
	if r, err := c.Purge(t.Context(), old, admin.Bulk{After: begun.Next}); len(r.IDs) != 8_998 || err != nil {
		t.Errorf("Purge: %d, %v, want 8998: all but those that another holds", len(r.IDs), err)
	}
	if left := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); left != 12 {
		t.Errorf("%d are left, want 12", left)
	}
	if most := db.Int(t, `SELECT max(n) FROM deleted`); most != 1000 {
		t.Errorf("a statement deleted %d rows, want 1000 at most", most)
	}
}

// PostgreSQL says of a statement whose context ends that it was canceled, and no more.
func TestABulkCallWhoseContextEndsInsideAStatementSaysSo(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	db.Hold(t, `LOCK TABLE outbox.dead_task`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() {
		defer cancel()
		for n := 0; n == 0 && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
				WHERE datname = current_database() AND NOT granted AND relation = 'outbox.dead_task'::regclass`).Scan(&n)
		}
	}()
	r, err := c.Purge(ctx, admin.DeadFilter{All: true}, admin.Bulk{})
	if !errors.Is(err, context.Canceled) || r.IDs != nil {
		t.Errorf("got %v, %v, want none and the end of the context", r, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Purge(ctx, admin.DeadFilter{All: true}, admin.Bulk{Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("got %v, want the end of the transaction's time", err)
	}
}

func TestATaskThatDiesAgainIsRedrivenOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	bury(t, db, "X", "attempts", "boom", 1, 3, 60)
	for _, f := range []admin.DeadFilter{{All: true}, {IDs: []int64{1, 2, 3}}} {
		calls := 0
		r, err := client(t, db.DB).Redrive(t.Context(), f, admin.Bulk{PerSecond: 19, Progress: func(admin.BulkResult) bool {
			db.Do(t, `DELETE FROM outbox.task`)
			if calls++; calls <= 3 {
				bury(t, db, "X", "attempts", "boom", calls, 1, 0)
			}
			return calls < 10
		}})
		if len(r.IDs) != 3 || r.Next != "" || err != nil {
			t.Errorf("got %+v, %v, want each of 3 once", r, err)
		}
	}
}

func TestABulkCallStopsWithItsContextAndKeepsItsRate(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 1000, 100)
	var first time.Time
	relaytest.Must(db.QueryRow(`SELECT min(died_at) FROM outbox.dead_task`).Scan(&first))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for n := 0; n == 0 && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM outbox.task`).Scan(&n)
		}
	}()
	r, err := c.Redrive(ctx, admin.DeadFilter{All: true}, admin.Bulk{PerSecond: 100})
	n := len(r.IDs)
	if !errors.Is(err, context.Canceled) || n == 0 || n == 1000 {
		t.Errorf("got %d, %v, want some and the end of the context", n, err)
	}
	if moved := db.Int(t, `SELECT count(*) FROM outbox.task`); moved != n {
		t.Errorf("%d were moved, it said %d", moved, n)
	}
	start := time.Now()
	old := admin.DeadFilter{DiedBefore: first.Add(time.Minute)}
	r, err = c.Purge(t.Context(), old, admin.Bulk{PerSecond: 200})
	if n = len(r.IDs); err != nil || n > 60 {
		t.Errorf("got %d, %v", n, err)
	}
	if min := time.Duration(n-20) * time.Second / 200; time.Since(start) < min {
		t.Errorf("%d took %v, want %v or more", n, time.Since(start), min)
	}
}
