package dashboard_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/dashboardtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// last is the latest entry of the audit log.
func (s *site) last(t testing.TB) string {
	t.Helper()
	return s.db.Text(t, `SELECT COALESCE((SELECT format('%s %s %s "%s" %s', actor, tool, action, target, count)
		FROM outbox.audit ORDER BY entry_id DESC LIMIT 1), '')`)
}

var (
	forms  = regexp.MustCompile(`(?s)<form method="post" action="\./([\w-]+)"[^>]*>(.*?)</form>`)
	fields = regexp.MustCompile(`<(?:input|button)[^>]* name="(\w+)" value="([^"]*)"`)
)

// form has the values that a form of the page, with each of its buttons, may send; with those of
// other forms for the same action.
func (a answer) form(action string) url.Values {
	q := url.Values{}
	for _, form := range forms.FindAllStringSubmatch(a.body, -1) {
		if form[1] == action {
			for _, f := range fields.FindAllStringSubmatch(form[2], -1) {
				q.Add(f[1], html.UnescapeString(f[2]))
			}
		}
	}
	return q
}

// offers fails unless a form of the page may send the values.
func (a answer) offers(t testing.TB, action, values string) {
	t.Helper()
	q, _ := url.ParseQuery(values)
	has := a.form(action)
	for name := range q {
		if !slices.Contains(has[name], q.Get(name)) {
			t.Errorf("no form for %s has %s=%s, only %v", action, name, q.Get(name), has)
		}
	}
}

func TestEachActionIsDoneNotedAndLeadsBack(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	task := func(state string) string {
		return fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = $1 AND task_type <> 'SYNC_CRM'`,
			state))
	}
	ready, scheduled, leased := task("ready"), task("scheduled"), task("leased")
	later := fmt.Sprint(db.Int(t, `SELECT max(task_id) FROM outbox.task WHERE task_type = 'REINDEX_SEARCH'`))
	const welcome = "type?name=SEND_WELCOME"
	for _, c := range []struct {
		page         string // has the form; "": none does
		action, form string
		to, says     string // the page that it leads to
		noted        string // last in the audit log
	}{
		{welcome, "pause", "name=SEND_WELCOME", "type?n=1&name=SEND_WELCOME&ok=paused", "The type is paused.",
			`pause "SEND_WELCOME" 1`},
		{welcome, "resume", "name=SEND_WELCOME", "type?n=1&name=SEND_WELCOME&ok=resumed", "The type is resumed.",
			`resume "SEND_WELCOME" 1`},
		{"task?id=" + later, "run-now", "id=" + later, "task?id=" + later + "&n=1&ok=run-now", "The task is due now.",
			`run_now "task ` + later + `" 1`},
		{"", "run-now", "id=" + later, "task?id=" + later + "&n=0&ok=run-now", "is no longer scheduled",
			`run_now "task ` + later + `" 1`},
		{"cancel?id=" + ready, "cancel", "id=" + ready, "type?n=1&name=SEND_WELCOME&ok=canceled",
			"The task is canceled.",
			`cancel "task ` + ready + `" 1`},
		{"cancel?id=" + scheduled, "cancel", "id=" + scheduled, "type?n=1&name=REINDEX_SEARCH&ok=canceled",
			"The task is canceled.",
			`cancel "task ` + scheduled + `" 1`},
		{"cancel?id=" + leased, "cancel", "id=" + leased, "task?id=" + leased + "&n=1&ok=requested",
			"Its relay has been asked",
			`cancel "task ` + leased + `" 1`},
		{"task?id=900001", "redrive", "one=900001&back=task", "task?id=900001&n=1&ok=redriven",
			"The dead letter is a task again.",
			`redrive "task 900001" 1`},
		{"", "redrive", "one=900001&back=task", "task?id=900001&n=0&ok=redriven", "nothing changed",
			`redrive "task 900001" 1`},
		{"dead?type=SEND_WELCOME&error=unknown", "redrive", "one=900002&type=SEND_WELCOME&error=unknown",
			"dead?error=unknown&n=1&ok=redriven&type=SEND_WELCOME", "The dead letter is a task again.",
			`redrive "task 900002" 1`},
		{"schedules", "pause-schedule", "name=daily report", "schedules?n=1&name=daily+report&ok=schedule-paused",
			"The schedule is paused", `pause_schedule "daily report" 1`},
		{"schedules", "resume-schedule", "name=daily report", "schedules?n=1&name=daily+report&ok=schedule-resumed",
			"The schedule is resumed.", `resume_schedule "daily report" 1`},
		{"schedules", "run-schedule", "name=daily report", "schedules?n=1&name=daily+report&ok=schedule-due",
			"The schedule fires within 10 s.", `run_schedule "daily report" 1`},
		{"relays", "hand-back", "relay=" + deadRelay, "relays?n=4&ok=handed-back", "Its tasks were handed back.",
			`hand_back: done "relay ` + deadRelay + `" 4`},
		{"", "hand-back", "relay=" + deadRelay, "relays?n=0&ok=handed-back", "It held no leases.",
			`hand_back: done "relay ` + deadRelay + `" 0`},
	} {
		if c.page != "" {
			s.get(t, c.page).offers(t, c.action, c.form)
		}
		s.post(t, c.action, c.form).leads(t, "./"+c.to)
		if got := s.last(t); got != "ada@example.com dashboard "+c.noted {
			t.Errorf("%s %s: the audit log ends with\n%s, want\n%s", c.action, c.form, got, c.noted)
		}
		s.get(t, c.to).has(t, 200, c.says)
	}
	for _, page := range []string{"task", "cancel"} {
		a := s.get(t, page+"?id=900001")
		if !strings.Contains(a.body, `>due</span></h1>`) || a.form("run-now").Has("id") {
			t.Errorf("after a redrive the page says\n%s", a.text())
		}
	}
	s.log.Want(t, 1, `actor=ada@example.com action=redrive target="task 900001" count=1`)
	if strings.Contains(s.log.String(), "nobody@exmaple.com") {
		t.Errorf("the log has payloads:\n%s", s.log)
	}
}

func TestAnActionThatIsRefusedIsNotNoted(t *testing.T) {
	t.Parallel()
	_, s := filled(t)
	before := s.last(t)
	for _, c := range []struct {
		action, form string
		status       int
	}{
		{"pause", "name=", 400}, {"resume", "name=a%0ab", 400}, {"cancel", "id=77777", 404}, {"run-now", "id=-1", 400},
		{"redrive", "one=x", 400}, {"pause-schedule", "name=none", 404}, {"hand-back", "relay=none", 404},
		{"hand-back", "relay=0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50", 409}, {"bulk", "do=drop", 400},
		{"bulk", "do=purge", 400},
		{"bulk", "do=purge&until=1&total=x", 400}, {"bulk", "do=purge&until=1&after=x", 400},
		{"bulk", "do=cancel&until=1&state=dead", 400}, {"bulk", "do=cancel&until=1&reason=handler", 400},
		{"bulk", "do=redrive&until=1&state=ready", 400}, {"bulk", "do=run_now&until=1&state=leased", 400},
		{"bulk", "do=cancel&until=1&keyless=1", 400}, {"bulk", "do=reschedule&until=1", 400},
		{"bulk", "do=reschedule&until=1&value=tomorrow", 400},
		{"bulk", "do=set_priority&until=1&value=40000", 400},
		{"bulk", "do=retype&until=1&value=", 400}, {"bulk", "do=retype&until=1&value=a%0ab", 400},
		{"set-payload", "id=x&payload={}", 400}, {"set-payload", "id=900001", 400},
		{"retry-now", "name=SEND_WELCOME", 404}, {"settings", "updates=pink", 400},
	} {
		s.post(t, c.action, c.form).has(t, c.status)
	}
	if got := s.last(t); got != before {
		t.Errorf("noted: %s", got)
	}
}

// A task is canceled only on a page that says what that does, as the task is then.
func TestCancelIsAskedFirst(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	id := func(state string) string {
		return fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = $1`, state))
	}
	for state, says := range map[string]string{"ready": "Canceling deletes it, with its payload. It cannot be undone.",
		"scheduled": "Canceling deletes it", "waiting": "Canceling deletes it",
		"leased": "its relay is asked to end it"} {
		page := s.get(t, "task?id="+id(state))
		page.has(t, 200, "Cancel…")
		if len(page.form("cancel")) > 0 || !strings.Contains(page.body, `href="./cancel?id=`+id(state)+`"`) {
			t.Errorf("%s: the page of the task cancels it without a question", state)
		}
		ask := s.get(t, "cancel?id="+id(state))
		ask.has(t, 200, "Cancel task "+id(state), says, "Cancel the task", "Keep it")
		ask.offers(t, "cancel", "id="+id(state))
	}
	dead := s.get(t, "cancel?id=900001")
	if dead.has(t, 200, "It is dead: there is nothing to cancel."); len(dead.form("cancel")) > 0 {
		t.Error("a dead letter can be canceled")
	}
	s.get(t, "cancel?id=77777").has(t, 404)
	s.get(t, "cancel").has(t, 400)
	buttons := regexp.MustCompile(`id="(redrive|run-now|cancel)"`)
	for task, want := range map[string]string{id("ready"): `[id="cancel"]`,
		id("scheduled"): `[id="run-now" id="cancel"]`,
		id("leased"):    `[id="cancel"]`, "900001": `[id="redrive"]`, "899741": `[]`} {
		if got := fmt.Sprint(buttons.FindAllString(s.get(t, "task?id="+task).body, -1)); got != want {
			t.Errorf("task %s has the buttons %s, want %s", task, got, want)
		}
	}
}

// A relay may have run a task by the time the page is loaded again that it was redriven on.
func TestATaskThatEndedRightAfterItsRedriveIsNoError(t *testing.T) {
	t.Parallel()
	_, s := filled(t)
	page := s.get(t, "task?id=77777&n=1&ok=redriven")
	page.has(t, 200, "The dead letter is a task again.", "It has gone")
	if strings.Contains(page.body, "hx-trigger") {
		t.Error("the page keeps itself up to date, but it cannot change")
	}
	s.get(t, "task?id=77777").has(t, 404, "There is no such task")
}

// bulk sends the form of a bulk page, if it has one, and those of its answers, until all is done or
// one fails.
func (s *site) bulk(t testing.TB, a answer, header ...string) answer {
	t.Helper()
	for len(a.form("bulk")) > 0 {
		a = s.post(t, "bulk", a.form("bulk").Encode(), header...)
		if strings.Contains(a.body, `role="alert"`) {
			break
		}
	}
	return a
}

func TestBulkActionsShowTheCountAndDoWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	dashboardtest.Bury(t, db.DB, "BULK", "attempts", "connection refused by 10.0.0.1", 1_000_000, 2500)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	left := func(taskType string, want int) {
		t.Helper()
		if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE task_type = $1`, taskType); n != want {
			t.Errorf("%d dead letters of %s are left, want %d", n, taskType, want)
		}
	}
	ask := s.get(t, "bulk?do=redrive&type=BULK&error=refused")
	ask.has(t, 200, "2,500 dead letters", `type BULK, error containing "refused"`, "Redrive 2,500 dead letters")
	s.get(t, "bulk?do=purge").has(t, 200, "2,553 dead letters", "cannot be undone")
	s.get(t, "bulk?do=purge&older=720h").has(t, 200, "0 dead letters", "Back")

	// One dies after the question was asked, and is not meant.
	db.Do(t, `UPDATE outbox.dead_task SET died_at = clock_timestamp() + interval '1 second' WHERE task_id = 1000000`)
	s.bulk(t, ask).has(t, 200, "2,499 of 2,500 redriven", "Done.")
	left("BULK", 1)

	// With script the answer is the part of the page that goes on by itself.
	part := s.bulk(t, s.get(t, "bulk?do=purge&type=SEND_WELCOME"), "HX-Request", "true")
	if part.has(t, 200, "40 of 40 purged", "Done."); !strings.HasPrefix(part.body, `<div id="bulk"`) {
		t.Errorf("the script gets %s", part.body)
	}
	left("SEND_WELCOME", 0)

	// An error ends it behind what was done before.
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$;
		CREATE TRIGGER boom BEFORE DELETE ON outbox.dead_task FOR EACH ROW WHEN (OLD.task_id = 2000100)
		EXECUTE FUNCTION outbox.boom()`)
	dashboardtest.Bury(t, db.DB, "BROKEN", "attempts", "x", 2_000_000, 1500) // the oldest have the highest ids
	s = serve(t, db, dashboard.Config{Authorize: as(everything)})            // it has not read the types before
	part = s.bulk(t, s.get(t, "bulk?do=purge&type=BROKEN"), "HX-Request", "true")
	part.has(t, 200, "1,000 of 1,500 purged", "PostgreSQL refused this.", "Purge the rest")
	s.log.Want(t, 1, "count=1000")
	if strings.Contains(part.body, "load delay") || strings.Contains(part.body, "boom") {
		t.Errorf("the page goes on by itself after an error, or shows it: %s", part.body)
	}
	s.bulk(t, s.get(t, "bulk?do=purge&type=BROKEN")).has(t, 500, "PostgreSQL refused this.")
	s.log.Want(t, 2, "level=ERROR")
	// It goes on where it was, and does not look again at what it has looked at.
	db.Do(t, `DROP TRIGGER boom ON outbox.dead_task`)
	dashboardtest.Bury(t, db.DB, "BROKEN", "attempts", "x", 4_000_000, 1)
	db.Do(t, `UPDATE outbox.dead_task SET died_at = died_at - interval '1 year' WHERE task_id = 4000000`)
	s.bulk(t, part, "HX-Request", "true").has(t, 200, "1,500 of 1,500 purged", "Done.")
	left("BROKEN", 1)

	// No address has it begun.
	link := s.get(t, "bulk?do=purge&type=LATE&done=5&left=1&total=50&until=9000000000000000")
	if link.has(t, 200, "0 dead letters"); strings.Contains(link.body, "load delay") ||
		strings.Contains(link.body, `id="confirm"`) {
		t.Errorf("a link skips the question: %s", link.body)
	}
}

func TestARedriveSaysWhatAnotherTaskHoldsTheKeyOf(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "KEYED", "attempts", "x", 1001, 5)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k' WHERE task_id > 1002`)
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('KEYED', 'k')`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	a := s.post(t, "redrive", "one=1003")
	page := s.get(t, strings.TrimPrefix(a.header.Get("Location"), "./"))
	page.has(t, 200, "0 redriven, 1 skipped: another task holds its unique key.")
	page.offers(t, "redrive", "one=1003&back=task&keyless=1")
	s.post(t, "redrive", "one=1003&back=task&keyless=1").leads(t, "./task?id=1003&n=1&ok=redriven")
	again := s.bulk(t, s.get(t, "bulk?do=redrive&type=KEYED"))
	again.has(t, 200, "2 redriven, 2 skipped: other tasks hold their unique keys.", "Done.")
	db.Do(t, `DELETE FROM outbox.dead_task WHERE task_id = 1004`)
	// What earlier requests skipped counts.
	again = s.post(t, "bulk", "do=redrive&type=KEYED&until=9000000000000000&done=2&skipped=1&total=4")
	again.has(t, 200, "2 redriven, 2 skipped", "Redrive 2 without their keys")
	s.post(t, "bulk", again.form("bulk").Encode()).has(t, 200, "1 of 2 redriven", "Done.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_id IN (1003, 1005) AND unique_key IS NULL`); n != 2 {
		t.Errorf("%d tasks were redriven without their keys, want 2", n)
	}
}

// everyAction are forms with their pages.
var everyAction = []struct{ action, form, page string }{
	{"pause", "name=SEND_WELCOME", "type?name=SEND_WELCOME"},
	{"resume", "name=SYNC_CRM", "type?name=SYNC_CRM"},
	{"run-now", "id=2000", "task?id=2000"},
	{"cancel", "id=130", "cancel?id=130"},
	{"redrive", "one=900001&back=task", "task?id=900001"},
	{"redrive", "one=900001&type=SEND_WELCOME", "dead?type=SEND_WELCOME"},
	{"bulk", "do=redrive&until=9000000000000000", "bulk?do=redrive"},
	{"bulk", "do=purge&until=9000000000000000&type=SEND_WELCOME", "dead?type=SEND_WELCOME"},
	{"bulk", "do=cancel&until=9000000000000000&type=SYNC_CRM", "tasks?type=SYNC_CRM"},
	{"bulk", "do=run_now&until=9000000000000000&state=retrying", "tasks?state=retrying"},
	{"bulk", "do=reschedule&until=9000000000000000&value=2031-01-02T03:04", "bulk?do=reschedule"},
	{"bulk", "do=set_priority&until=9000000000000000&value=7", "bulk?do=set_priority"},
	{"bulk", "do=retype&until=9000000000000000&value=OTHER&type=SYNC_CRM", "bulk?do=retype&type=SYNC_CRM"},
	{"set-payload", "id=900001&payload={}", "task?id=900001&payload=show"},
	{"pause-schedule", "name=daily+report", "schedules"},
	{"resume-schedule", "name=sync+crm", "schedules"},
	{"hand-back", "relay=" + deadRelay, "relays"},
}

// explained fails unless the answer says what happened, that nothing was changed by an action, and
// has a way on: again, back, or to the overview.
func (a answer) explained(t testing.TB, what, back string, status int, title string) {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, "<h1>"+title+"</h1>") ||
		strings.Contains(a.text(), http.StatusText(status)) || !strings.Contains(a.body, `href="./">Overview</a></p>`) {
		t.Errorf("%s: got %d, want %d %s:\n%s", what, a.status, status, title, a.text())
		return
	}
	if action := back != ""; strings.Contains(a.text(), "Nothing was changed.") != action ||
		action && !strings.Contains(a.body, fmt.Sprintf(`id="back" href="./%s"`, strings.ReplaceAll(back, "&", "&amp;"))) ||
		strings.Contains(a.body, `id="again"`) == action {
		t.Errorf("%s: it does not say what is done, or leads nowhere:\n%s", what, a.body)
	}
}

// fails sends each page and each form of a dashboard on db, and wants a page about the error.
func (s *site) fails(t *testing.T, what string, pages []string, status int, title string) {
	t.Helper()
	for _, page := range pages {
		s.get(t, page).explained(t, what+", page "+page, "", status, title)
	}
	for _, c := range everyAction {
		s.post(t, c.action, c.form, "Referer", s.URL+"/outbox/"+c.page).
			explained(t, what+", "+c.action, c.page, status, title)
	}
}

func TestEachPageAndActionSaysWhatHappenedAndLeadsBack(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Local(t, nil)
			relaytest.Must(relaytest.Migrate(server.URL()))
			owner := relaytest.Direct(t, server.URL(), "postgres")
			dashboardtest.Fill(t, owner.DB)
			owner.Do(t, `CREATE ROLE viewer LOGIN PASSWORD 'v'; CREATE ROLE barred LOGIN PASSWORD 'b'`)
			relaytest.Must(schema.GrantRoles(t.Context(), owner.DB))
			owner.Do(t, `GRANT outbox_viewer TO viewer`)
			open := func(change func(u *url.URL)) *site {
				u, err := url.Parse(server.URL())
				relaytest.Must(err)
				change(u)
				return serve(t, relaytest.Direct(t, u.String(), driver), dashboard.Config{Authorize: as(everything)})
			}
			pages := append(slices.Clone(askPages), allPages...)

			open(func(u *url.URL) { u.User = url.UserPassword("postgres", "wrong"); u.Path = "/none" }).
				fails(t, "no such database", pages, 503, "PostgreSQL refuses the login")
			if driver == "pgx" { // lib/pq begins each transaction as one that writes
				open(func(u *url.URL) { u.RawQuery += "&default_transaction_read_only=on" }).
					fails(t, "read-only", nil, 503, "PostgreSQL takes no writes")
			}
			open(func(u *url.URL) { u.User = url.UserPassword("viewer", "v") }).
				fails(t, "a viewer", nil, 500, "The database role lacks a right")
			open(func(u *url.URL) { u.User = url.UserPassword("barred", "b") }).
				fails(t, "no right", pages, 500, "The database role lacks a right")
			broken := open(func(*url.URL) {})
			owner.Do(t, `ALTER SCHEMA outbox RENAME TO elsewhere`)
			broken.fails(t, "no schema", pages, 500, "The schema does not fit")
			owner.Do(t, `ALTER SCHEMA elsewhere RENAME TO outbox`)

			pool := relaytest.Direct(t, server.URL(), driver)
			serve(t, pool, dashboard.Config{Authorize: as(everything)}).get(t, "audit").has(t, 200)
			away := serve(t, pool, dashboard.Config{Authorize: as(everything)}) // a connection waits in its pool
			relaytest.Must(server.Stop("immediate"))
			away.fails(t, "away", pages, 503, "PostgreSQL is unavailable")
			for _, from := range []string{"", "https://elsewhere.example/dead", away.URL + "/outbox/pause", away.URL + "/", "%"} {
				a := away.post(t, "redrive", "one=900001", "Referer", from)
				if a.has(t, 503, "Overview"); strings.Contains(a.body, `id="back"`) {
					t.Errorf("from %q it leads back:\n%s", from, a.body)
				}
			}
		})
	}
}
