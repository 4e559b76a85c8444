package admin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
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
		var got []int64
		p := admin.Page{Limit: 5}
		for i := 0; ; i++ {
			page, next, err := c.DeadLetters(t.Context(), admin.Filter{Type: "MAIL"}, p)
			if err != nil || i > 5 {
				t.Fatal(i, err)
			}
			got = append(got, ids(page)...)
			if p.After = next; next == "" {
				break
			}
			bury(t, db, "MAIL", "attempts", "boom", 100+i, 1, 1) // newer ones, before the first page
		}
		if !slices.Equal(got, ids(all)) {
			t.Errorf("pages have %v, want %v", got, ids(all))
		}
	})
}

// A search for what few have is spread over pages, each of which looks at a bounded number, and finds all, the latest first, wherever they are.
func TestPagesOfASearchFindAllTheLatestFirst(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 25_000, 60_000) // 25,000 is the latest
		bury(t, db, "PAY", "handler", "rare", 30_000, 3, 10)
		want := []int64{30_002, 30_001, 30_000, 25_000, 9001, 9000, 2001, 2000, 1}
		db.Do(t, `UPDATE outbox.dead_task SET last_error = 'rare' WHERE task_id IN (1, 2000, 2001, 9000, 9001, 25000)`)
		db.Do(t, `UPDATE outbox.dead_task SET died_at = (SELECT died_at FROM outbox.dead_task WHERE task_id = 10000) WHERE task_id BETWEEN 10000 AND 15000`) // at one moment
		rare := admin.Filter{Error: "rare"}
		for _, limit := range []int{1, 2, 1000} {
			var found []int64
			pages := 0
			for p := (admin.Page{Limit: limit, Look: 2000}); pages == 0 || p.After != ""; pages++ {
				letters, next, err := c.DeadLetters(t.Context(), rare, p)
				if err != nil || len(letters) > limit || pages > 13+len(want) {
					t.Fatalf("got %v, %q, %v, after %v", ids(letters), next, err, found)
				}
				found, p.After = append(found, ids(letters)...), next
			}
			if !slices.Equal(found, want) || pages < 13 { // of 2,000
				t.Errorf("by %d: %d pages have %v, want %v", limit, pages, found, want)
			}
		}
		n, pages := int64(0), 0
		for p := (admin.Page{Look: 2000}); pages == 0 || p.After != ""; pages++ {
			counted, next, err := c.CountDeadLetters(t.Context(), rare, p)
			if err != nil || pages > 13 {
				t.Fatalf("got %d, %q, %v", counted, next, err)
			}
			n, p.After = n+counted, next
		}
		if n != 9 || pages != 13 {
			t.Errorf("%d pages count %d, want 9 in 13", pages, n)
		}
		// By what an index tells, a list needs no bound; a count does.
		mail := admin.Filter{Type: "MAIL"}
		if letters, next, err := c.DeadLetters(t.Context(), mail, admin.Page{Limit: 2, Look: 1}); err != nil || !slices.Equal(ids(letters), []int64{25_000, 24_999}) || next != admin.PlaceOf(letters[1]) {
			t.Errorf("got %v, %q, %v", ids(letters), next, err)
		}
		if n, next, err := c.CountDeadLetters(t.Context(), mail, admin.Page{Look: 10_000}); err != nil || n != 10_000 || !strings.HasSuffix(next, ".15001") {
			t.Errorf("got %d, %q, %v, want the first 10,000", n, next, err)
		}
		if n, next, err := c.CountDeadLetters(t.Context(), mail, admin.Page{}); err != nil || n != 25_000 || next != "" {
			t.Errorf("got %d, %q, %v, want all", n, next, err)
		}
		committed := admin.Filter{Type: "MAIL", Reason: admin.ReasonCommitted}
		if letters, next, err := c.DeadLetters(t.Context(), committed, admin.Page{Look: 10_000}); err != nil || len(letters) > 0 || !strings.HasSuffix(next, ".15001") {
			t.Errorf("a page of none: got %v, %q, %v, want the 10,000th letter as its end", ids(letters), next, err)
		}
	})
}
