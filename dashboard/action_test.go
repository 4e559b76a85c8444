package dashboard_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/dashboardtest"
)

// last is the latest entry of the audit log.
func (s *site) last(t testing.TB) string {
	t.Helper()
	return s.db.Text(t, `SELECT (SELECT format('%s %s %s "%s" %s', actor, tool, action, target, count) FROM outbox.audit ORDER BY entry_id DESC LIMIT 1)`)
}

var (
	forms  = regexp.MustCompile(`(?s)<form method="post" action="\./([\w-]+)"[^>]*>(.*?)</form>`)
	fields = regexp.MustCompile(`<(?:input|button)[^>]* name="(\w+)" value="([^"]*)"`)
)

// hasForm reports whether a form of the page, with one of its buttons, sends the values.
func (a answer) hasForm(action string, values url.Values) bool {
	for _, form := range forms.FindAllStringSubmatch(a.body, -1) {
		has := url.Values{}
		for _, f := range fields.FindAllStringSubmatch(form[2], -1) {
			has.Add(f[1], html.UnescapeString(f[2]))
		}
		missing := form[1] != action
		for name, v := range values {
			missing = missing || !slices.Contains(has[name], v[0])
		}
		if !missing {
			return true
		}
	}
	return false
}

func TestEachActionIsDoneNotedAndLeadsBack(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	task := func(state string) string {
		return fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = $1 AND task_type IN ('SEND_WELCOME', 'RESIZE_IMAGE', 'LEDGER')`, state))
	}
	ready, scheduled, leased := task("ready"), task("scheduled"), task("leased")
	later := fmt.Sprint(db.Int(t, `SELECT max(task_id) FROM outbox.task WHERE task_type = 'REINDEX_SEARCH'`))
	for _, c := range []struct {
		page, path, form, to, says, entry, proof string // the form is on the page, and the proof is true afterwards
	}{
		{"type?name=SEND_WELCOME", "pause", "name=SEND_WELCOME", "./type?n=1&name=SEND_WELCOME&ok=paused", "The type is paused.", `ada@example.com dashboard pause "SEND_WELCOME" 1`, `SELECT paused FROM outbox.task_type WHERE task_type = 'SEND_WELCOME'`},
		{"type?name=SEND_WELCOME", "resume", "name=SEND_WELCOME", "./type?n=1&name=SEND_WELCOME&ok=resumed", "The type is resumed.", `ada@example.com dashboard resume "SEND_WELCOME" 1`, `SELECT NOT paused FROM outbox.task_type WHERE task_type = 'SEND_WELCOME'`},
		{"task?id=" + later, "run-now", "id=" + later, "./task?id=" + later + "&n=1&ok=run-now", "The task is due now.", `ada@example.com dashboard run_now "task ` + later + `" 1`, `SELECT state = 'ready' FROM outbox.task WHERE task_id = ` + later},
		{"", "run-now", "id=" + later, "./task?id=" + later + "&n=0&ok=run-now", "is no longer scheduled", `ada@example.com dashboard run_now "task ` + later + `" 1`, `SELECT count(*) = 1 FROM outbox.audit WHERE action = 'run_now'`},
		{"cancel?id=" + ready, "cancel", "id=" + ready, "./type?n=1&name=SEND_WELCOME&ok=canceled", "The task is canceled.", `ada@example.com dashboard cancel "task ` + ready + `" 1`, `SELECT NOT EXISTS (SELECT 1 FROM outbox.task WHERE task_id = ` + ready + `)`},
		{"cancel?id=" + scheduled, "cancel", "id=" + scheduled, "./type?n=1&name=SEND_WELCOME&ok=canceled", "The task is canceled.", `ada@example.com dashboard cancel "task ` + scheduled + `" 1`, `SELECT NOT EXISTS (SELECT 1 FROM outbox.task WHERE task_id = ` + scheduled + `)`},
		{"cancel?id=" + leased, "cancel", "id=" + leased, "./task?id=" + leased + "&n=1&ok=requested", "Its relay has been asked", `ada@example.com dashboard cancel "task ` + leased + `" 1`, `SELECT EXISTS (SELECT 1 FROM outbox.cancel WHERE task_id = ` + leased + `)`},
		{"task?id=900001", "redrive", "one=900001&back=task", "./task?id=900001&n=1&ok=redriven", "The dead letter is a task again.", `ada@example.com dashboard redrive "task 900001" 1`, `SELECT state = 'scheduled' FROM outbox.task WHERE task_id = 900001`},
		{"", "redrive", "one=900001&back=task", "./task?id=900001&n=0&ok=redriven", "nothing changed", `ada@example.com dashboard redrive "task 900001" 1`, `SELECT count(*) = 1 FROM outbox.audit WHERE target = 'task 900001'`},
		{"dead?type=SEND_WELCOME&error=unknown", "redrive", "one=900002&type=SEND_WELCOME&error=unknown", "./dead?error=unknown&n=1&ok=redriven&type=SEND_WELCOME", "The dead letter is a task again.", `ada@example.com dashboard redrive "task 900002" 1`, `SELECT state = 'scheduled' FROM outbox.task WHERE task_id = 900002`},
		{"schedules", "pause-schedule", "name=daily report", "./schedules?n=1&name=daily+report&ok=schedule-paused", "The schedule is paused", `ada@example.com dashboard pause_schedule "daily report" 1`, `SELECT paused FROM outbox.schedule WHERE name = 'daily report'`},
		{"schedules", "resume-schedule", "name=daily report", "./schedules?n=1&name=daily+report&ok=schedule-resumed", "The schedule is resumed.", `ada@example.com dashboard resume_schedule "daily report" 1`, `SELECT NOT paused FROM outbox.schedule WHERE name = 'daily report'`},
		{"relays", "hand-back", "relay=0197a1e0-1a00-7000-8000-00000000dead", "./relays?n=4&ok=handed-back", "Its tasks were handed back.", `ada@example.com dashboard hand_back: done "relay 0197a1e0-1a00-7000-8000-00000000dead" 4`, `SELECT count(*) = 12 FROM outbox.task WHERE state = 'leased'`},
		{"", "hand-back", "relay=0197a1e0-1a00-7000-8000-00000000dead", "./relays?n=0&ok=handed-back", "It held no leases.", `ada@example.com dashboard hand_back: done "relay 0197a1e0-1a00-7000-8000-00000000dead" 0`, `SELECT count(*) = 2 FROM outbox.audit WHERE action = 'hand_back' AND count = 0`},
	} {
		form, err := url.ParseQuery(c.form)
		if err != nil {
			t.Fatal(err)
		}
		if c.page != "" && !s.get(t, c.page).hasForm(c.path, form) {
			t.Errorf("%s has no form for %s with %s", c.page, c.path, c.form)
		}
		a := s.post(t, c.path, form)
		if a.status != 303 || a.header.Get("Location") != c.to {
			t.Errorf("%s %s: got %d %q, want 303 %q; %s", c.path, c.form, a.status, a.header.Get("Location"), c.to, a.text())
			continue
		}
		if got := s.last(t); got != c.entry {
			t.Errorf("%s %s: the audit log ends with\n%s, want\n%s", c.path, c.form, got, c.entry)
		}
		if db.Int(t, `SELECT (`+c.proof+`)::int`) != 1 {
			t.Errorf("%s %s: it was not done", c.path, c.form)
		}
		s.get(t, strings.TrimPrefix(c.to, "./")).has(t, 200, c.says)
	}
	log := s.log.String()
	for _, want := range []string{`action=pause target=SEND_WELCOME count=1`, `action=redrive target="task 900001" count=1`, `actor=ada@example.com`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, "nobody@exmaple.com") {
		t.Errorf("the log has payloads:\n%s", log)
	}
	for path, c := range map[string]struct {
		form   string
		status int
	}{
		"pause": {"name=", 400}, "resume": {"name=a%0ab", 400}, "cancel": {"id=1", 404}, "run-now": {"id=-1", 400}, "redrive": {"one=x", 400}, "pause-schedule": {"name=none", 404},
		"hand-back": {"relay=0197a1f2-7c11-7a3e-9a55-1f0c2d3e4f50", 409}, "bulk": {"do=drop", 400}, "hand-back?x": {"relay=none", 404}, "bulk?x": {"do=purge", 400},
		"bulk?y": {"do=purge&until=1&total=x", 400}, "bulk?z": {"do=purge&until=1&after=x", 400}, "settings": {"theme=pink", 400},
	} {
		form, _ := url.ParseQuery(c.form)
		before := s.last(t)
		if a := s.post(t, path, form); a.status != c.status {
			t.Errorf("%s %s: got %d, want %d: %s", path, c.form, a.status, c.status, a.text())
		}
		if got := s.last(t); got != before {
			t.Errorf("%s %s: it is refused and noted: %s", path, c.form, got)
		}
	}
}

// A task is canceled only on a page that says what that does, as the task is then.
func TestCancelIsAskedFirst(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	id := func(state string) string {
		return fmt.Sprint(db.Int(t, `SELECT min(task_id) FROM outbox.task WHERE state = $1`, state))
	}
	before := changed(t, db)
	for state, says := range map[string]string{"ready": "Canceling deletes it, with its payload. It cannot be undone.", "scheduled": "Canceling deletes it", "waiting": "Canceling deletes it", "leased": "its relay is asked to end it"} {
		page := s.get(t, "task?id="+id(state))
		if page.has(t, 200, "Cancel…"); strings.Contains(page.body, `action="./cancel"`) || !strings.Contains(page.body, `href="./cancel?id=`+id(state)+`"`) {
			t.Errorf("%s: the page of the task cancels it without a question", state)
		}
		ask := s.get(t, "cancel?id="+id(state))
		ask.has(t, 200, "Cancel task "+id(state), says, "Cancel the task", "Keep it")
		if !strings.Contains(ask.body, `<form method="post" action="./cancel">`) || strings.Contains(ask.body, "hx-") && strings.Contains(ask.body, "hx-trigger") {
			t.Errorf("%s: the question is not a form that stays as it is: %s", state, ask.body)
		}
	}
	dead := s.get(t, "cancel?id=900001")
	if dead.has(t, 200, "It is dead: there is nothing to cancel."); strings.Contains(dead.body, `action="./cancel"`) {
		t.Error("a dead letter can be canceled")
	}
	s.get(t, "cancel?id=77777").has(t, 404)
	s.get(t, "cancel").has(t, 400)
	if after := changed(t, db); after != before {
		t.Errorf("a question has changed something: %d, before %d", after, before)
	}
	buttons := regexp.MustCompile(`id="(redrive|run-now|cancel)"`)
	for path, want := range map[string]string{
		"task?id=" + id("ready"): `[id="cancel"]`, "task?id=" + id("scheduled"): `[id="run-now" id="cancel"]`,
		"task?id=" + id("leased"): `[id="cancel"]`, "task?id=900001": `[id="redrive"]`, "task?id=899741": `[]`,
	} {
		if got := fmt.Sprint(buttons.FindAllString(s.get(t, path).body, -1)); got != want {
			t.Errorf("%s has the buttons %s, want %s", path, got, want)
		}
	}
}

// bulkForm is the form of a bulk page with what is in it.
func bulkForm(a answer) url.Values {
	q := url.Values{}
	for _, form := range forms.FindAllStringSubmatch(a.body, -1) {
		if form[1] == "bulk" {
			for _, f := range fields.FindAllStringSubmatch(form[2], -1) {
				q.Set(f[1], html.UnescapeString(f[2]))
			}
		}
	}
	return q
}

// bulk sends the form of a bulk page, and those of its answers, until all is done or one fails.
func (s *site) bulk(t testing.TB, a answer, header ...string) answer {
	t.Helper()
	for more := true; more; more = len(bulkForm(a)) > 0 && !strings.Contains(a.body, `role="alert"`) {
		a = s.post(t, "bulk", bulkForm(a), header...)
	}
	return a
}

func TestBulkActionsShowTheCountAndDoWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Fill(t, db.DB)
	dashboardtest.Bury(t, db.DB, "BULK", "attempts", "connection refused by 10.0.0.1", 1_000_000, 2500)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	ask := s.get(t, "bulk?do=redrive&type=BULK&error=refused")
	ask.has(t, 200, "2,500 dead letters", `type BULK, error containing "refused"`, "Redrive 2,500 dead letters")
	s.get(t, "bulk?do=purge").has(t, 200, "2,553 dead letters", "cannot be undone")
	s.get(t, "bulk?do=purge&reason=handler").has(t, 200, "3 dead letters")
	s.get(t, "bulk?do=purge&older=720h").has(t, 200, "0 dead letters", "Back")

	// One dies after the question was asked, and is not meant.
	db.Do(t, `UPDATE outbox.dead_task SET died_at = clock_timestamp() + interval '1 second' WHERE task_id = 1000000`)
	s.bulk(t, ask).has(t, 200, "2,499 of 2,500 redriven", "Done.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE task_type = 'BULK'`); n != 1 {
		t.Errorf("%d dead letters are left, want the one that died later", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'BULK' AND state = 'scheduled'`); n != 2499 {
		t.Errorf("%d tasks, want 2499", n)
	}
	if n := db.Int(t, `SELECT sum(count) FROM outbox.audit WHERE action = 'redrive' AND target LIKE 'dead letters: type BULK, error containing "refused", died before %'`); n != 2499 {
		t.Errorf("the audit log has %d redriven", n)
	}

	// With script the answer is the part of the page that goes on by itself.
	ask = s.get(t, "bulk?do=purge&type=SEND_WELCOME")
	part := s.bulk(t, ask, "HX-Request", "true")
	if part.has(t, 200, "40 of 40 purged", "Done."); strings.Contains(part.body, "<html") || !strings.HasPrefix(part.body, `<div id="bulk"`) {
		t.Errorf("the script gets %s", part.body)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE task_type = 'SEND_WELCOME'`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
	// What was done before an error is done, and said.
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$`)
	db.Do(t, `CREATE TRIGGER boom BEFORE DELETE ON outbox.dead_task FOR EACH ROW WHEN (OLD.task_id = 2000100) EXECUTE FUNCTION outbox.boom()`)
	dashboardtest.Bury(t, db.DB, "BROKEN", "attempts", "x", 2_000_000, 1500) // the oldest have the highest ids
	part = s.bulk(t, s.get(t, "bulk?do=purge&type=BROKEN"), "HX-Request", "true")
	if part.has(t, 200, "1,000 of 1,500 purged", "PostgreSQL refused this.", "Go on"); strings.Contains(part.body, "load delay") {
		t.Error("the page goes on by itself after an error")
	}
	if failed := s.post(t, "bulk", bulkForm(part), "HX-Request", "true"); !strings.Contains(failed.text(), "PostgreSQL refused this.") || strings.Contains(failed.text(), "boom") {
		t.Errorf("the error is not said: %s", failed.text())
	}
	plain := s.post(t, "bulk", bulkForm(s.get(t, "bulk?do=purge&type=BROKEN"))) // without script, 500 are left and the first of them fails
	plain.has(t, 500, "PostgreSQL refused this.")
	if n := strings.Count(s.log.String(), "boom"); n != 3 || strings.Count(s.log.String(), "level=ERROR") != 3 {
		t.Errorf("%d records of three failed requests, want one of each:\n%s", n, s.log)
	}
	// It goes on where it was, and does not look again at what it has looked at.
	db.Do(t, `DROP TRIGGER boom ON outbox.dead_task`)
	dashboardtest.Bury(t, db.DB, "BROKEN", "attempts", "x", 4_000_000, 1)
	db.Do(t, `UPDATE outbox.dead_task SET died_at = died_at - interval '1 year' WHERE task_id = 4000000`)
	s.bulk(t, part, "HX-Request", "true").has(t, 200, "1,500 of 1,500 purged", "Done.")
	if n := db.Int(t, `SELECT sum(task_id) FROM outbox.dead_task WHERE task_type = 'BROKEN'`); n != 4_000_000 {
		t.Errorf("the letters that are left have ids of the sum %d, want the one that came behind, 4000000", n)
	}

	// No address has it begun.
	link := s.get(t, "bulk?do=purge&type=LATE&done=5&left=1&total=50&until=9000000000000000")
	if link.has(t, 200, "0 dead letters"); strings.Contains(link.body, "load delay") || strings.Contains(link.body, `id="confirm"`) {
		t.Errorf("a link skips the question: %s", link.body)
	}
}

func TestARedriveSaysWhatAnotherTaskHoldsTheKeyOf(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	dashboardtest.Bury(t, db.DB, "KEYED", "attempts", "x", 1001, 4)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k' WHERE task_id > 1002`)
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('KEYED', 'k')`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	a := s.post(t, "redrive", url.Values{"one": {"1003"}})
	page := s.get(t, strings.TrimPrefix(a.header.Get("Location"), "./"))
	page.has(t, 200, "0 redriven, 1 skipped: another task holds its unique key.")
	if without := (url.Values{"one": {"1003"}, "back": {"task"}, "keyless": {"1"}}); !page.hasForm("redrive", without) {
		t.Error("the page of the task does not offer to redrive it without its key")
	} else if s.post(t, "redrive", without); db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_id = 1003 AND unique_key IS NULL`) != 1 {
		t.Error("it was not redriven without its key")
	}
	dashboardtest.Bury(t, db.DB, "KEYED", "attempts", "x", 1005, 1)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k' WHERE task_id = 1005`)
	s.bulk(t, s.get(t, "bulk?do=redrive&type=KEYED")).has(t, 200, "2 redriven, 2 skipped: other tasks hold their unique keys.", "Done.")
	// What earlier requests skipped counts.
	form := url.Values{"do": {"redrive"}, "type": {"KEYED"}, "until": {"9000000000000000"}, "done": {"2"}, "skipped": {"0"}, "total": {"4"}}
	db.Do(t, `DELETE FROM outbox.dead_task WHERE task_id = 1004`)
	s.post(t, "bulk", form).has(t, 200, "2 redriven, 1 skipped: another task holds its unique key.")
	form.Set("skipped", "1")
	again := s.post(t, "bulk", form)
	again.has(t, 200, "2 redriven, 2 skipped", "Redrive 2 without their keys")
	s.post(t, "bulk", bulkForm(again)).has(t, 200, "1 of 2 redriven", "Done.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_id = 1005 AND unique_key IS NULL`); n != 1 {
		t.Error("what was skipped was not redriven without its key")
	}
}

// A relay may have run a task by the time the page is loaded again that it was redriven on.
func TestATaskThatEndedRightAfterItsRedriveIsNoError(t *testing.T) {
	t.Parallel()
	db, s := filled(t)
	a := s.post(t, "redrive", url.Values{"one": {"900001"}, "back": {"task"}})
	db.Do(t, `DELETE FROM outbox.task WHERE task_id = 900001`)
	page := s.get(t, strings.TrimPrefix(a.header.Get("Location"), "./"))
	page.has(t, 200, "The dead letter is a task again.", "It has gone")
	if strings.Contains(page.body, "hx-trigger") {
		t.Error("the page keeps itself up to date, but it cannot change")
	}
	s.get(t, "task?id=900001").has(t, 404, "There is no such task")
}
