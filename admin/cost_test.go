package admin_test

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// I10 of what operators see: a page, a task and the lists of relays and types cost the same
// wherever they are, with 30,000 tasks in each state as with
// 1,000,000 (OUTBOX_TEST_LONG=1).
func TestEveryStatementCostsTheSameAtAnyNumberOfTasks(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	n := 30_000
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		n = 1_000_000
	}
	db := relaytest.NewDatabase(t)
	began := time.Now()
	huge(t, db, n)
	// As if the sample of ANALYZE had met no task of RARE: a generic plan assumes a single type
	// then.
	for _, table := range []string{"task", "dead_task", "done_task"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` ALTER task_type SET (n_distinct = 1)`)
	}
	for _, table := range []string{"task", "dead_task", "done_task", "running", "relay", "sample", "counter"} {
		db.Do(t, `VACUUM ANALYZE outbox.`+table)
	}
	t.Logf("%d tasks in each state after %v", n, time.Since(began).Round(time.Second))
	cost(t, db, liveCalls(t, db, n), false, true)
	// Those that redrive leave dead rows behind, for which the others would pay. Nothing keeps them
	// for other arguments.
	cost(t, db, deadCalls(t, db, n), false)
}

// call is one of a client, each of whose statements reads so many pages at most.
type call struct {
	pages int
	do    func(*admin.Client) error
}

// mostPages are those of statements that are bounded in another way than their call.
var mostPages = map[string]int{"inspect the runs of relays": 4100, "the end of a page of dead letters": 400}

func cost(t *testing.T, db *database, calls map[string]call, generic ...bool) {
	t.Helper()
	small := []string{"relay", "running", "schedule", "task_type", "counter", "counter_log", "origin"}
	for name, call := range calls {
		r := &recorder{Querier: db.DB}
		if err := call.do(client(t, db.DB).In(r)); err != nil && !errors.Is(err, errRecorded) || len(r.sent) == 0 {
			t.Errorf("%s: %v, after %d statements", name, err, len(r.sent))
		}
		for _, s := range r.sent {
			what, _, _ := strings.Cut(strings.TrimPrefix(s.query, "/* outbox: "), " */")
			for _, generic := range generic {
				p, text := explain(t, db, s, generic)
				for _, table := range p.reads() {
					if !slices.Contains(small, table) {
						t.Errorf("%s: %s (generic %t) reads the whole table %s:\n%s", name, what, generic, table, text)
					}
				}
				if pages, most := p.Hit+p.Read, cmp.Or(mostPages[what], call.pages); pages > most || strings.Contains(text, `"External`) {
					t.Errorf("%s: %s (generic %t) reads %d pages, want %d at most, and no sort on disk:\n%s", name, what, generic, pages, most, text)
				}
				// Two ends of a page are not two filters, each of which lets half of all through:
				// at a few million that is a plan with workers and JIT.
				if n := p.expects(); name == "count all" && what == "count dead letters" && n > 2*2000 {
					t.Errorf("%s expects %d rows, want about 2,000:\n%s", name, n, text)
				}
			}
		}
	}
}

// liveCalls are those of tasks, relays and types.
func liveCalls(t *testing.T, db *database, n int) map[string]call {
	t.Helper()
	ctx, middle := t.Context(), int64(db.Int(t, `SELECT max(task_id) / 2 FROM outbox.task`))
	all := map[string]call{
		"task":      {100, func(c *admin.Client) error { _, err := c.Task(ctx, middle); return err }},
		"secrets":   {100, func(c *admin.Client) error { _, err := c.Secrets(ctx, middle); return err }},
		"relays":    {100, func(c *admin.Client) error { _, err := c.Relays(ctx); return err }},
		"types":     {100, func(c *admin.Client) error { _, err := c.Types(ctx); return err }},
		"schedules": {100, func(c *admin.Client) error { _, err := c.Schedules(ctx); return err }},
		"samples":   {3100, func(c *admin.Client) error { _, err := c.Samples(ctx, "A", time.Hour); return err }},
	}
	for state, o := range listed {
		for _, taskType := range []string{"A", "RARE", ""} {
			if taskType == "" && state != admin.Dead && state != admin.Finished {
				continue
			}
			// From the beginning, from the middle, from the end.
			places := []string{""}
			if taskType == "A" && state != admin.Leased {
				for _, at := range []int{n / 2, n - 100} {
					task, err := client(t, db.DB).Task(ctx, int64(db.Int(t, o.order+` OFFSET $1 LIMIT 1`, at)))
					if err != nil {
						t.Fatal(err)
					}
					places = append(places, admin.PlaceOf(task))
				}
			}
			for i, place := range places {
				all[string(state)+" "+taskType+" "+[]string{"first", "middle", "last"}[i]] = call{250, func(c *admin.Client) error {
					_, _, err := c.Tasks(ctx, taskType, state, admin.Page{After: place})
					return err
				}}
			}
		}
	}
	return all
}

// deadCalls are those of dead letters by a filter.
func deadCalls(t *testing.T, db *database, n int) map[string]call {
	t.Helper()
	ctx := t.Context()
	middle, err := client(t, db.DB).Task(ctx, int64(100_000_000+n/2))
	if err != nil {
		t.Fatal(err)
	}
	list := func(f admin.Filter, after string, look int) func(*admin.Client) error {
		return func(c *admin.Client) error {
			_, _, err := c.DeadLetters(ctx, f, admin.Page{After: after, Look: look, Limit: 1000})
			return err
		}
	}
	count := func(f admin.Filter) func(*admin.Client) error {
		return func(c *admin.Client) error {
			_, _, err := c.CountDeadLetters(ctx, f, admin.Page{After: admin.PlaceOf(middle), Look: 2000})
			return err
		}
	}
	take := func(name string, f admin.Filter, after string) func(*admin.Client) error {
		return func(c *admin.Client) error {
			_, _, err := takers[name](c, ctx, f, admin.Page{After: after, Look: 10_000})
			return err
		}
	}
	at, every := admin.PlaceOf(middle), admin.Filter{All: true}
	old := admin.Filter{OlderThan: time.Duration(n-5000) * time.Second}
	rare, common := admin.Filter{Type: "RARE"}, admin.Filter{Type: "A"}
	none, noneOf := admin.Filter{Error: "no such"}, admin.Filter{Error: "no such", Type: "A"}
	noneSince := admin.Filter{Error: "no such", DiedAfter: middle.EndedAt.Add(-time.Hour)}
	return map[string]call{
		"list by time":        {200, list(admin.Filter{DiedAfter: middle.EndedAt, DiedBefore: middle.EndedAt.Add(time.Minute)}, "", 0)},
		"list by age":         {400, list(old, "", 0)},
		"redrive by id":       {1000, take("redrive", admin.Filter{IDs: []int64{1, 2, middle.TaskID}}, "")}, // and the catalog of the table
		"redrive all":         {20_000, take("redrive", every, at)},                                         // 1,000 rows through eight indexes
		"redrive a type":      {20_000, take("redrive", common, at)},
		"redrive a rare type": {20_000, take("redrive", rare, at)},
		"redrive by error":    {20_000, take("redrive", admin.Filter{Error: "boom"}, at)},
		"purge all":           {10_000, take("purge", every, at)},
		"purge a rare type":   {10_000, take("purge", rare, at)},
		"purge by age":        {10_000, take("purge", old, "")},
		"list none":           {400, list(none, at, 2000)},
		"list none of one":    {400, list(noneOf, at, 2000)},
		"count all":           {400, count(admin.Filter{})},
		"count none since":    {400, count(noneSince)},
		"count a type":        {400, count(common)},
		"redrive none":        {1000, take("redrive", none, at)},
		"purge none since":    {1000, take("purge", noneSince, at)},
		"redrive none of one": {1000, take("redrive", noneOf, at)},
	}
}
