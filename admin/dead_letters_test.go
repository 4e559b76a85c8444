package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
		gone := fmt.Sprintf("order %d: user 0197a1f2-7c11-4000-8000-00000000000%d is gone\nmore %d", n, n, n)
		bury(t, db, "A", "handler", gone, 1+n, 1, 10)
		bury(t, db, "A", "handler", fmt.Sprintf("timeout after %d s", n), 11+n, 1, 60)
	}
	bury(t, db, "B", "handler", "timeout after 1 s", 21, 1, 70)
	bury(t, db, "A", "handler", "", 31, 1, 80)
	for want, f := range map[string]admin.DeadFilter{
		"A order #: user # is gone 4, A timeout after # s 4, B timeout after # s 1, A  1": {},
		"B timeout after # s 1": {Type: "B"},
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
