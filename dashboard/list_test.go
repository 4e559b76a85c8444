package dashboard_test

import (
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/taskview"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// A field of the form that is not tested here fails the test.
func TestEachFieldFiltersTasks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, ordering_key, group_key,
			last_error, attempt, run_at, created_at)
		VALUES ('MAIL', '{"user_id": 1}', NULL, NULL, NULL, NULL, 0, now(), now()),
		       ('SYNC', '{}', NULL, NULL, NULL, NULL, 0, now(), now()),
		       ('MAIL', '{}', NULL, NULL, NULL, '100% full', 3, now() + interval '1 day', now()),
		       ('MAIL', '{}', 'secret', NULL, NULL, NULL, 0, now(), now()),
		       ('MAIL', '{}', NULL, 'secret', NULL, NULL, 0, now(), now()),
		       ('MAIL', '{}', NULL, NULL, 'secret', NULL, 0, now(), now()),
		       ('MAIL', '{"user_id": 7, "pin": 1}', NULL, NULL, NULL, NULL, 0, now(),
		        now() - interval '2 days')`)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", "refused", 900, 1)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	tasks := regexp.MustCompile(`id="task-(\d+)"`)
	tested := map[string]bool{}
	for _, c := range []struct{ query, ids, says string }{
		{"", "900 7 6 5 4 3 2 1", ""},
		{"type=SYNC", "2", ""},
		{"state=retrying", "3", "1 retrying task"},
		{"state=dead", "900", "Redrive or purge them"},
		{"error=100%25", "3", "1 task"},
		{"error=0_f", "", "No task matches."},
		{"unique=secret", "4", ""},
		{"ordered=secret", "5", ""},
		{"group=secret", "6", ""},
		{`payload={"user_id": 7}`, "7", ""},
		{"older=24h", "7", ""},
		{"type=MAIL&state=ready&older=24h", "7", "1 of 3 ready tasks of type MAIL"},
		{"type=SYNC&older=24h", "", "0 tasks of type SYNC"},
	} {
		q, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		a := s.get(t, "tasks?"+q.Encode())
		var ids []string
		for _, m := range tasks.FindAllStringSubmatch(a.body, -1) {
			ids = append(ids, m[1])
		}
		if a.has(t, 200, c.says); strings.Join(ids, " ") != c.ids {
			t.Errorf("%s: the page has the tasks %v, want %s", c.query, ids, c.ids)
		}
		for name, value := range q {
			tested[name] = true
			field := regexp.MustCompile(`name="` + name +
				`"(?:[^>]*|>.*?<option) value="([^"]*)"(?: a| selected>)`)
			m := field.FindStringSubmatch(a.body)
			if m == nil || !strings.HasPrefix(html.UnescapeString(m[1]), value[0]) {
				t.Errorf("%s: the form does not show it: %v", c.query, m)
			}
		}
	}
	for _, f := range taskview.FiltersOf(taskview.OtherTasks) {
		if !tested[f.Name] {
			t.Errorf("no test filters by %s", f.Name)
		}
	}
	a := s.get(t, "tasks?state=dead&error=ref")
	if !strings.Contains(a.body, `href="./dead?error=ref"`) {
		t.Errorf("dead tasks do not lead to the page of dead letters: %s", a.body)
	}
}

// Filters by keys and payloads would tell them letter by letter.
func TestOnlyViewersOfPayloadsFilterByThem(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, ordering_key, group_key)
		VALUES ('MAIL', '{"pin": 1234}', '1234', '1234', NULL), ('MAIL', '{}', NULL, NULL, '1234')`)
	dashboardtest.Bury(t, db.DB, "MAIL", "attempts", "refused", 900, 1)
	operator := serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessOperate)})
	viewer := serve(t, db, dashboard.Config{Authorize: as(dashboard.AccessViewPayloads)})
	const refused = "Your role does not show keys and payloads, so it may not filter by them."
	secrets := 0
	for _, f := range taskview.FiltersOf(taskview.OtherTasks) {
		for _, page := range []string{"tasks", "dead"} {
			offered := `id="f-` + f.Name + `"`
			found := strings.Contains(operator.get(t, page).body, offered)
			if f.Of == taskview.AnyTasks && found == f.Secret {
				t.Errorf("the page %s offers %s to a viewer without payloads: %v", page, f.Name, !f.Secret)
			}
			if f.Secret && !strings.Contains(viewer.get(t, page).body, offered) {
				t.Errorf("the page %s does not offer %s to a viewer of payloads", page, f.Name)
			}
		}
		if !f.Secret {
			continue
		}
		secrets++
		by := "&" + f.Name + "=1234"
		for _, path := range []string{"tasks?", "dead?", "bulk?do=cancel", "bulk?do=purge"} {
			operator.get(t, path+by).has(t, 403, refused)
		}
		for _, form := range []string{"do=cancel", "do=purge"} {
			a := operator.post(t, "bulk", form+"&until=9000000000000000"+by)
			a.has(t, 403, refused, "Nothing was changed.")
		}
		operator.post(t, "redrive", "one=900"+by).has(t, 403, refused)
		viewer.get(t, "tasks?"+by).has(t, 200)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task, outbox.dead_task`); n != 2 || secrets != 4 {
		t.Errorf("%d tasks are left, and %d filters are secret", n, secrets)
	}
}

// The type of a task leads to its errors and its bulk actions.
func TestThePageOfATypeLeadsToItsTasks(t *testing.T) {
	t.Parallel()
	_, s := filled(t)
	const retrying = "type?name=SEND_WELCOME&state=retrying"
	a := s.get(t, retrying)
	a.has(t, 200, "Run all now…", "Search or change these")
	links := regexp.MustCompile(`href="\./((?:tasks|bulk)\?[^"]*)"`)
	var got []string
	for _, m := range links.FindAllStringSubmatch(a.body, -1) {
		got = append(got, html.UnescapeString(m[1]))
	}
	const ofType = "state=retrying&type=SEND_WELCOME"
	want := []string{"bulk?do=run_now&" + ofType, "tasks?" + ofType,
		"tasks?error=smtp%3A+421+4.3.2+mx.example.com%3A+service+not+available&" + ofType}
	if !slices.Equal(got, want) {
		t.Fatalf("the page leads to %q, want %q", got, want)
	}
	s.get(t, want[2]).has(t, 200, "9 of 9 retrying tasks")
	s.bulk(t, s.get(t, want[0])).has(t, 200, "9 of 9 made due", "Done.")
	viewer := serve(t, s.db, dashboard.Config{Authorize: as(dashboard.AccessView)})
	for path, says := range map[string]string{"type?name=SYNC_CRM&state=ready": "Search these", retrying: "",
		"tasks": "GRANT", "dead": "900001"} {
		if page := viewer.get(t, path); strings.Contains(page.body, "./bulk") {
			t.Errorf("%s: a viewer gets a link of an operator: %s", path, page.body)
		} else {
			page.has(t, 200, says)
		}
	}
}

// A search of many tasks answers with how far it has come, after each 10,000.
func TestASearchOfTasksThatTakesLongGoesOn(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at, attempt, last_error)
		SELECT 'MAIL', now() + n * interval '1 minute', 1,
		       CASE WHEN n IN (10, 24990) THEN 'a rare one' ELSE 'boom' END
		  FROM generate_series(1, 25000) n`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	next := regexp.MustCompile(`rel="next" href="\./([^"]+)"`)
	for path, pages := range map[string][]string{
		"tasks?error=rare": {"It has searched those with ids from 15001.", "Search older ones",
			"No task matches among those with ids from 5001.", "Searching older ones…"},
		"tasks?error=rare&type=MAIL&state=retrying": {
			"It has searched those that are due until in 6 d", "Search later ones",
			"No task matches among those that are due until in 13 d", "Searching later ones…"},
	} {
		first := s.get(t, path)
		first.has(t, 200, pages[0], pages[1], "1 or more")
		second := s.get(t, html.UnescapeString(next.FindStringSubmatch(first.body)[1]))
		second.has(t, 200, pages[2], pages[3])
		last := s.get(t, html.UnescapeString(next.FindStringSubmatch(second.body)[1]))
		last.has(t, 200, "First page")
		if !strings.Contains(last.body, `id="task-`) || next.MatchString(last.body) {
			t.Errorf("%s: the last page is %s", path, last.text())
		}
	}
	ask := s.get(t, "bulk?do=set_priority&error=rare")
	ask.has(t, 200, "At least 1 task", "Counting all of them takes too long.",
		"Set the priority of all of them")
	form := ask.form("bulk")
	form.Set("value", "7")
	s.bulk(t, s.post(t, "bulk", form.Encode())).has(t, 200, "2 given the priority", "Done.")
}
