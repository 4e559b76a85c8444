package inspect_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/inspect"
	"github.com/txoutbox/outbox/internal/needs"
)

// listed are statements that insert tasks of the type A in a state, n of them, with equals in what they are ordered by; and the query of their order.
var listed = map[inspect.State]struct{ insert, order string }{
	inspect.Ready: {`INSERT INTO outbox.task (task_type, priority, attempt) SELECT 'A', n % 3 - 1, n % 2 FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.task WHERE task_type = 'A' AND state = 'ready' ORDER BY priority, attempt, task_id`},
	inspect.Scheduled: {`INSERT INTO outbox.task (task_type, run_at) SELECT 'A', now() + (7 - n % 7) * interval '1 hour' FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.task WHERE task_type = 'A' AND state = 'scheduled' ORDER BY run_at, task_id`},
	inspect.Leased: {`INSERT INTO outbox.task (task_type, state, relay_id, lease_token) SELECT 'A', 'leased', gen_random_uuid(), gen_random_uuid() FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.task WHERE task_type = 'A' AND state = 'leased' ORDER BY task_id`},
	inspect.Waiting: {`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'A', 'k' || 100 - n FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.task WHERE task_type = 'A' AND state = 'waiting' ORDER BY task_id`},
	inspect.Dead: {`WITH enqueued AS (INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, $1::int, 'A', 'ready'))
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload)
		SELECT nextval('ids'), now(), now(), now() - n % 4 * interval '1 day', 0, 1, 1, 'handler', 'A', '{}' FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.dead_task WHERE task_type = 'A' ORDER BY died_at DESC, task_id DESC`},
	inspect.Finished: {`INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
		SELECT nextval('ids'), now(), now(), now(), now(), 0, 1, 'A', '{}' FROM generate_series(1, $1::int) n`,
		`SELECT task_id FROM outbox.done_task WHERE task_type = 'A' ORDER BY task_id DESC`},
}

// all reads page after page.
func all(t *testing.T, db *database, f inspect.Filter, limit int, between func()) (tasks []inspect.Task) {
	t.Helper()
	for after := ""; ; {
		page, err := inspect.List(t.Context(), db, f, after, limit)
		if err != nil {
			t.Fatalf("%+v after %q: %v", f, after, err)
		}
		tasks = append(tasks, page.Tasks...)
		if page.Next == "" {
			return tasks
		}
		if len(page.Tasks) != limit || page.Next == after {
			t.Fatalf("%+v: a page of %d tasks that is not the last, limit %d", f, len(page.Tasks), limit)
		}
		after = page.Next
		between()
	}
}

func TestPagesHaveEachTaskOnceInItsOrder(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE SEQUENCE ids START 1000000`)
		for state, c := range listed {
			db.Do(t, c.insert, 40)
			db.Do(t, strings.ReplaceAll(c.insert, "'A'", "'B'"), 3) // of another type
			var want []int64
			rows, err := db.QueryContext(t.Context(), c.order)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var id int64
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				want = append(want, id)
			}
			if err := rows.Close(); err != nil || len(want) != 40 {
				t.Fatalf("%s: %d tasks, %v", state, len(want), err)
			}
			f := inspect.Filter{Type: "A", State: state}
			for _, limit := range []int{1, 7, 20, 40, 41, 1000} {
				got := all(t, db, f, limit, func() {})
				if !slices.Equal(ids(got), want) {
					t.Errorf("%s in pages of %d: %v, want %v", state, limit, ids(got), want)
				}
				if i := slices.IndexFunc(got, func(x inspect.Task) bool { return x.Type != "A" || x.State != state }); i >= 0 {
					t.Errorf("%s: %+v", state, got[i])
				}
			}
			// Others come and go meanwhile: those that keep their place are each there once.
			gone := map[int64]bool{}
			got := ids(all(t, db, f, 3, func() {
				victim := want[len(gone)*2%len(want)]
				gone[victim] = true
				for _, table := range []string{"task", "dead_task", "done_task"} {
					db.Do(t, `DELETE FROM outbox.`+table+` WHERE task_id = $1`, victim)
				}
				db.Do(t, c.insert, 1)
			}))
			seen := map[int64]int{}
			for _, id := range got {
				seen[id]++
			}
			for _, id := range want {
				if n := seen[id]; n > 1 || n == 0 && !gone[id] {
					t.Errorf("%s: task %d was listed %d times while others came and went", state, id, n)
				}
			}
			db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.dead_task WHERE task_type = 'A'; DELETE FROM outbox.done_task WHERE task_type = 'A'`)
		}
		for _, state := range []inspect.State{inspect.Dead, inspect.Finished} {
			if got := all(t, db, inspect.Filter{State: state}, 2, func() {}); len(got) < 3 || got[0].Type != "B" {
				t.Errorf("%s of all types: %+v", state, got)
			}
		}
	})
}

func TestListRefusesBadArgumentsBeforeAnySQL(t *testing.T) {
	t.Parallel()
	f := inspect.Filter{Type: "A", State: inspect.Ready}
	for name, c := range map[string]struct {
		filter inspect.Filter
		after  string
		limit  int
		opts   []inspect.Option
		want   string
	}{
		"no state":               {inspect.Filter{Type: "A"}, "", 0, nil, "Filter.State"},
		"another state":          {inspect.Filter{Type: "A", State: "late"}, "", 0, nil, "Filter.State"},
		"no type":                {inspect.Filter{State: inspect.Ready}, "", 0, nil, "Filter.Type"},
		"no type of leased":      {inspect.Filter{State: inspect.Leased}, "", 0, nil, "Filter.Type"},
		"a type with NUL":        {inspect.Filter{Type: "A\x00", State: inspect.Ready}, "", 0, nil, "task type"},
		"a type that is no text": {inspect.Filter{Type: "\xff", State: inspect.Dead}, "", 0, nil, "task type"},
		"a negative limit":       {f, "", -1, nil, "limit"},
		"a limit too large":      {f, "", 1001, nil, "limit"},
		"garbage":                {f, "x", 0, nil, "after"},
		"too few numbers":        {f, "ready.1.2", 0, nil, "after"},
		"too many numbers":       {f, "ready.1.2.3.4", 0, nil, "after"},
		"another state's place":  {f, "waiting.1", 0, nil, "after"},
		"no number":              {f, "ready.1.2.x", 0, nil, "after"},
		"a priority too large":   {f, "ready.40000.0.1", 0, nil, "after"},
		"a negative id":          {f, "ready.0.0.-1", 0, nil, "after"},
		"an id too large":        {f, "ready.0.0.9223372036854775808", 0, nil, "after"},
		"a time too large":       {inspect.Filter{Type: "A", State: inspect.Scheduled}, "scheduled.9223372036854775807.1", 0, nil, "after"},
		"SQL":                    {f, "ready.0.0.1; DROP TABLE x", 0, nil, "after"},
		"a nil Option":           {f, "", 0, []inspect.Option{nil}, "Option"},
		"a bad schema":           {f, "", 0, []inspect.Option{inspect.Schema(`a"b`)}, "Schema"},
	} {
		_, err := inspect.List(t.Context(), nil, c.filter, c.after, c.limit, c.opts...) // a nil Querier would panic
		if !errors.Is(err, inspect.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ErrInvalid with %s", name, err, c.want)
		}
	}
	if _, err := inspect.Samples(t.Context(), nil, "A", 0); !errors.Is(err, inspect.ErrInvalid) {
		t.Errorf("samples of no time: %v", err)
	}
	if _, err := inspect.Samples(t.Context(), nil, "\xff", time.Hour); !errors.Is(err, inspect.ErrInvalid) {
		t.Errorf("samples of a type that is no text: %v", err)
	}
	bad := inspect.Schema("A b")
	_, err1 := inspect.Get(t.Context(), nil, 1, bad)
	_, err2 := inspect.GetSecrets(t.Context(), nil, 1, bad)
	_, err3 := inspect.Relays(t.Context(), nil, bad)
	_, err4 := inspect.Types(t.Context(), nil, bad)
	_, err5 := inspect.Schedules(t.Context(), nil, bad)
	_, err6 := inspect.Samples(t.Context(), nil, "", time.Hour, bad)
	for i, err := range []error{err1, err2, err3, err4, err5, err6} {
		if !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("call %d with a bad schema: %v", i+1, err)
		}
	}
}

// A place may come from a URL.
func FuzzAPlaceIsRefusedOrUnderstood(f *testing.F) {
	for _, seed := range []string{"", "ready.0.0.1", "scheduled.-1.2", "dead.1.2", "finished.1", "ready.+1.0.1", "leased.1", "waiting.01", "a.b", "......"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, after string) {
		for state := range listed {
			args, err := inspect.ParsePlace(state, after)
			if err != nil && !errors.Is(err, inspect.ErrInvalid) {
				t.Errorf("%q: %v", after, err)
			}
			if err == nil && after != "" && fmt.Sprint(args) == "" {
				t.Errorf("%q: no numbers", after)
			}
		}
	})
}
