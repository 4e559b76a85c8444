package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/needs"
)

func TestPagesOfDeadLettersNeitherRepeatNorSkip(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 25, 60)
		db.Do(t, `UPDATE outbox.dead_task SET died_at = (SELECT min(died_at) FROM outbox.dead_task) WHERE task_id % 2 = 0`) // at the same moment
		all, _, err := c.DeadLetters(t.Context(), admin.Filter{}, admin.Page{Limit: 1000})
		if err != nil || len(all) != 25 {
			t.Fatalf("got %d letters, %v, want 25", len(all), err)
		}
		newer := 100
		got, _ := pages(t, admin.Page{Limit: 5}, func(p admin.Page) ([]admin.Task, string, error) {
			if p.After != "" {
				newer++
				bury(t, db, "MAIL", "attempts", "boom", newer, 1, 1) // before the first page
			}
			return c.DeadLetters(t.Context(), admin.Filter{Type: "MAIL"}, p)
		})
		if !slices.Equal(ids(got), ids(all)) {
			t.Errorf("pages have %v, want %v", ids(got), ids(all))
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
		db.Do(t, `UPDATE outbox.dead_task SET died_at = (SELECT died_at FROM outbox.dead_task WHERE task_id = 10000) WHERE task_id BETWEEN 10000 AND 15000`) // at one moment
		rare := admin.Filter{Error: "rare"}
		for limit, most := range map[int]int{1: 13 + 9, 2: 13 + 9, 1000: 13} { // of 2,000
			found, n := pages(t, admin.Page{Limit: limit, Look: 2000}, func(p admin.Page) ([]admin.Task, string, error) { return c.DeadLetters(ctx, rare, p) })
			if !slices.Equal(ids(found), want) || n < 13 || n > most {
				t.Errorf("by %d: %d pages have %v, want %v", limit, n, ids(found), want)
			}
		}
		counted, n := pages(t, admin.Page{Look: 2000}, func(p admin.Page) ([]int64, string, error) {
			n, next, err := c.CountDeadLetters(ctx, rare, p)
			return []int64{n}, next, err
		})
		sum := int64(0)
		for _, n := range counted {
			sum += n
		}
		if sum != 9 || n != 13 {
			t.Errorf("%d pages count %d, want 9 in 13", n, sum)
		}
		// By what an index tells, a list needs no bound; a count does.
		mail, none := admin.Filter{Type: "MAIL"}, admin.Filter{Type: "MAIL", Reason: admin.ReasonCommitted}
		if letters, next, err := c.DeadLetters(ctx, mail, admin.Page{Limit: 2, Look: 1}); err != nil || !slices.Equal(ids(letters), []int64{25_000, 24_999}) || next != admin.PlaceOf(letters[1]) {
			t.Errorf("got %v, %q, %v", ids(letters), next, err)
		}
		if n, next, err := c.CountDeadLetters(ctx, mail, admin.Page{Look: 10_000}); err != nil || n != 10_000 || !strings.HasSuffix(next, ".15001") {
			t.Errorf("got %d, %q, %v, want the first 10,000", n, next, err)
		}
		if n, next, err := c.CountDeadLetters(ctx, mail, admin.Page{}); err != nil || n != 25_000 || next != "" {
			t.Errorf("got %d, %q, %v, want all", n, next, err)
		}
		if letters, next, err := c.DeadLetters(ctx, none, admin.Page{Look: 10_000}); err != nil || len(letters) > 0 || !strings.HasSuffix(next, ".15001") {
			t.Errorf("a page of none: got %v, %q, %v, want the 10,000th letter as its end", ids(letters), next, err)
		}
		for name, take := range takers {
			if page, next, err := take(c, ctx, none, admin.Page{Look: 10_000}); err != nil || len(page.IDs) != 0 || !strings.HasSuffix(next, ".10000") {
				t.Errorf("%s, a page of none: %v, %q, %v, want the 10,000th letter as its end", name, page, next, err)
			}
			// EveryPage looks at as many.
			if n, _, err := c.EveryPage(ctx, func(ctx context.Context, f admin.Filter, p admin.Page) (admin.Taken, string, error) {
				if p.Look != 10_000 {
					t.Errorf("it looks at %d", p.Look)
				}
				return take(c, ctx, f, p)
			}, none, 0); n != 0 || err != nil {
				t.Errorf("%s: got %d, %v", name, n, err)
			}
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			f := admin.Filter{Error: "rare", DiedBefore: time.Now()}
			taken, n := pages(t, admin.Page{Limit: 2, Look: 10_000}, func(p admin.Page) ([]int64, string, error) {
				page, next, err := take(c.In(tx), ctx, f, p)
				return page.IDs, next, err
			})
			var left int
			if err := tx.QueryRow(`SELECT count(*) FROM outbox.dead_task`).Scan(&left); err != nil {
				t.Fatal(err)
			}
			if slices.Reverse(taken); !slices.Equal(taken, want) || n > 8 || left != 25_003-9 {
				t.Errorf("%s: %d pages took %v, %d are left, want %v", name, n, taken, left, want)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
