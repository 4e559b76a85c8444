package dashboard_test

import (
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// A search of many dead letters answers with how far it has come, after each 10,000.
func TestASearchThatTakesLongGoesOn(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", "boom", 1, 35_000) // 1 is the latest
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id IN (1500, 30001, 30002)`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	ids := regexp.MustCompile(`id="task-[0-9]+"`)
	path := "dead?error=rare"
	for i, c := range []struct {
		rows []string
		says string
	}{
		{[]string{`id="task-1500"`}, "It has searched those that died since"},
		{nil, "No dead letter matches among those that died since"},
		{nil, "Searching older ones…"},
		{[]string{`id="task-30001"`, `id="task-30002"`}, "First page"},
	} {
		a := s.get(t, path)
		a.has(t, 200, c.says)
		if got := ids.FindAllString(a.body, -1); !slices.Equal(got, c.rows) {
			t.Errorf("page %d has %v, want %v", i, got, c.rows)
		}
		m := next.FindStringSubmatch(a.body)
		if (m == nil) != (i == 3) {
			t.Fatalf("page %d leads to %v", i, m)
		}
		if m != nil {
			path = html.UnescapeString(m[1])
		}
	}
	// A list that an index reaches is no search.
	if a := s.get(t, "dead?type=MAIL"); strings.Contains(a.body, "older ones") ||
		!strings.Contains(a.body, "Next page") {
		t.Errorf("a list of a type: %s", a.text())
	}
	// The question before a bulk action says what it knows, and the action finds all.
	ask := s.get(t, "bulk?do=redrive&error=rare")
	ask.has(t, 200, "At least 1 dead letter", "Counting all of them takes too long.", "Redrive all of them")
	s.bulk(t, ask).has(t, 200, "3 redriven", "Done.")
	s.get(t, "bulk?do=purge&error=none+has+this").has(t, 200, "Their number is not known.")
}
