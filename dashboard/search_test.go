package dashboard_test

import (
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
	"github.com/txoutbox/outbox/internal/needs"
)

// A search that takes long answers with how far it has come, and goes on there: here after each
// 2,000 letters.
func TestASearchThatTakesLongGoesOn(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", strings.Repeat("boom ", 800), 1, 7_000) // 1 is the latest
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id IN (1500, 6001, 6002)`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	s.handler.SetSearchTime(0)
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	older := func(a answer) string {
		t.Helper()
		m := next.FindStringSubmatch(a.body)
		if m == nil {
			t.Fatalf("there is no link to older ones: %s", a.text())
		}
		return html.UnescapeString(m[1])
	}
	ids := regexp.MustCompile(`id="task-[0-9]+"`)
	shows := func(a answer, want ...string) {
		t.Helper()
		if got := ids.FindAllString(a.body, -1); !slices.Equal(got, want) {
			t.Errorf("the page has %v, want %v", got, want)
		}
	}
	first := s.get(t, "dead?error=rare")
	first.has(t, 200, "It has searched those that died since", "Search older ones", "Redrive all that match")
	shows(first, `id="task-1500"`)
	second := s.get(t, older(first))
	second.has(t, 200, "No dead letter matches among those that died since", "Searching older ones…", "First page")
	shows(second)
	third := s.get(t, older(second), "HX-Request", "true") // as its script asks
	third.has(t, 200, "No dead letter matches among those")
	if !strings.Contains(third.body, `hx-trigger="load delay:50ms" hx-target="#live"`) {
		t.Errorf("the script gets %s", third.body)
	}
	fourth := s.get(t, older(third))
	shows(fourth, `id="task-6001"`, `id="task-6002"`)
	if next.MatchString(fourth.body) {
		t.Errorf("the last page has a next one: %s", fourth.text())
	}
	// A list that an index reaches is no search.
	if a := s.get(t, "dead?type=MAIL"); strings.Contains(a.body, "older ones") ||
		!strings.Contains(a.body, "Next page") {
		t.Errorf("a list of a type: %s", a.text())
	}

	// The question before a bulk action says what it knows, and the action finds all.
	ask := s.get(t, "bulk?do=redrive&error=rare")
	ask.has(t, 200, "At least 1 dead letter", "Tasks that die from now on stay", "Counting all of them takes too long.",
		"Redrive all of them")
	s.bulk(t, ask).has(t, 200, "3 redriven", "Done.")
	s.get(t, "bulk?do=purge&error=none+has+this").has(t, 200, "Their number is not known.")
}

// What is known by then is shown, also when a later look is stopped by the timeout; where nothing
// is known, as there is no connection, that is said.
func TestASearchThatIsStoppedShowsWhatItHas(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", "boom", 1, 9_000)
	db.Do(t, `UPDATE outbox.dead_task SET last_error = 'a rare one' WHERE task_id = 1500`)
	// A look at these does not end in time.
	dashboardtest.SlowDown(t, db.DB, "id > 3000", 60)
	s := serve(t, db, dashboard.Config{Authorize: as(everything), StatementTimeout: time.Second})
	page := s.get(t, "dead?error=rare")
	page.has(t, 200, "a rare one", "It has searched those that died since", "Search older ones")
	s.get(t, "bulk?do=redrive&error=rare").has(t, 200, "At least 1 dead letter")

	db.SetMaxOpenConns(1)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, path := range []string{"dead?error=rare", "bulk?do=purge&error=rare"} {
		if a := s.get(t, path); a.status != 503 || strings.Contains(a.body, `id="confirm"`) {
			t.Errorf("%s without a connection: %d %s", path, a.status, a.text())
		}
	}
}
