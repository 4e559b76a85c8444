package deadletter_test

import (
	"slices"
	"testing"

	"github.com/txoutbox/outbox/deadletter"
)

// A search for what few have is spread over pages, each of which looks at a bounded number, and finds all, the latest first, wherever they are.
func TestPagesOfASearchFindAllTheLatestFirst(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "MAIL", "attempts", "boom", 1, 25_000, 60_000) // 25,000 is the latest
	bury(t, db, "PAY", "handler", "rare", 30_000, 3, 10)
	want := []int64{30_002, 30_001, 30_000, 25_000, 9001, 9000, 2001, 2000, 1}
	exec(t, db, `UPDATE outbox.dead_task SET last_error = 'rare' WHERE task_id IN (1, 2000, 2001, 9000, 9001, 25000)`)
	exec(t, db, `UPDATE outbox.dead_task SET died_at = (SELECT died_at FROM outbox.dead_task WHERE task_id = 10000) WHERE task_id BETWEEN 10000 AND 15000`) // at one moment
	rare := deadletter.Filter{Error: "rare"}
	for _, limit := range []int{1, 2, 1000} {
		var found []int64
		pages := 0
		for p := (deadletter.Page{}); !p.Last; pages++ {
			letters, next, err := deadletter.ListPage(t.Context(), db, rare, p.Next, limit, 2000)
			if err != nil || len(letters) > limit || int(next.Count) != len(letters) || pages > 13+len(want) {
				t.Fatalf("got %v, %+v, %v, after %v", ids(letters), next, err, found)
			}
			found, p = append(found, ids(letters)...), next
		}
		if !slices.Equal(found, want) || pages < 13 { // of 2,000
			t.Errorf("by %d: %d pages have %v, want %v", limit, pages, found, want)
		}
	}
	n, pages := int64(0), 0
	for p := (deadletter.Page{}); !p.Last; pages++ {
		next, err := deadletter.CountPage(t.Context(), db, rare, p.Next, 2000)
		if err != nil || pages > 13 {
			t.Fatalf("got %+v, %v", next, err)
		}
		n, p = n+next.Count, next
	}
	if n != 9 || pages != 13 {
		t.Errorf("%d pages count %d, want 9 in 13", pages, n)
	}
	// By what an index tells, a list needs no bound; a count does.
	if letters, p, err := deadletter.ListPage(t.Context(), db, deadletter.Filter{Type: "MAIL"}, deadletter.Cursor{}, 2, 1); err != nil || !slices.Equal(ids(letters), []int64{25_000, 24_999}) || p.Next != letters[1].Cursor() || p.Last {
		t.Errorf("got %v, %+v, %v", ids(letters), p, err)
	}
	if p, err := deadletter.CountPage(t.Context(), db, deadletter.Filter{Type: "MAIL"}, deadletter.Cursor{}, 0); err != nil || p.Count != 10_000 || p.Last || p.Next.TaskID != 15_001 {
		t.Errorf("got %+v, %v, want the first 10,000", p, err)
	}
	committed := deadletter.Filter{Type: "MAIL", Reason: deadletter.Committed}
	if letters, p, err := deadletter.ListPage(t.Context(), db, committed, deadletter.Cursor{}, 0, 0); err != nil || len(letters) > 0 || p.Last || p.Next.TaskID != 15_001 {
		t.Errorf("a page of none: got %v, %+v, %v, want the 10,000th letter as its end", ids(letters), p, err)
	}
}
