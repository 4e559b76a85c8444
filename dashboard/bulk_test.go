package dashboard_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/dashboard"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// plant writes 12 tasks of a type: 4 ready, one of them with a unique key, 3 scheduled, 2 retrying
// after an error, 2 waiting, 1 leased.
func plant(t testing.TB, db *relaytest.Database, taskType, key string) {
	t.Helper()
	for _, rows := range []string{
		`(task_type, payload, unique_key) VALUES ($1, '{"pin": 1234}', '` + key + `')`,
		`(task_type, payload) SELECT $1, '{"pin": 1234}' FROM generate_series(1, 3)`,
		`(task_type, run_at) SELECT $1, now() + interval '1 day' FROM generate_series(1, 3)`,
		`(task_type, run_at, attempt, last_error) SELECT $1, now() + interval '1 day', 2, 'refused'
			FROM generate_series(1, 2)`,
		`(task_type, ordering_key) SELECT $1, 'k' FROM generate_series(1, 2)`,
		`(task_type, state, relay_id, lease_token, attempt, attempted_at)
			VALUES ($1, 'leased', gen_random_uuid(), gen_random_uuid(), 1, now())`,
	} {
		db.Do(t, `INSERT INTO outbox.task `+rows, taskType)
	}
}

func TestBulkActionsOnTasksDoWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		do, filter, value string
		asks              string // after the number of tasks and their noun
		button            string
		says              []string // when it is done
		changed           string   // a condition for the tasks that were changed; "": they are deleted
		n                 int      // how many
		audit             string   // without the time of the question
		count             int      // in the audit log
	}{
		{"cancel", "", "", "12 tasks Filter: type T.", "Cancel 12 tasks",
			[]string{"11 of 12 canceled", "11 canceled, 1 running: asked to end."}, "", 11, "type T", 12},
		{"cancel", "&error=refused", "", `2 tasks Filter: type T, error containing "refused".`,
			"Cancel 2 tasks", []string{"2 of 2 canceled"}, "", 2, `type T, error containing "refused"`, 2},
		{"cancel", "&payload=%7B%22pin%22:1234%7D&unique=k1", "",
			`1 task Filter: type T, unique key k1, payload contains {"pin":1234}.`, "Cancel 1 task",
			[]string{"1 of 1 canceled"}, "", 1, "type T, of a unique key, with a payload", 1},
		{"run_now", "", "", "5 tasks Filter: type T.", "Run 5 tasks now", []string{"5 of 5 made due"},
			"state = 'ready' AND task_id > 4", 5, "type T", 5},
		{"run_now", "&state=retrying", "", "2 tasks Filter: type T, state retrying.", "Run 2 tasks now",
			[]string{"2 of 2 made due"}, "state = 'ready' AND attempt = 2", 2, "type T, state retrying", 2},
		{"reschedule", "", "2031-01-02T03:04", "11 tasks", "Reschedule 11 tasks",
			[]string{"11 of 11 rescheduled", "Due at, in UTC: 2031-01-02T03:04",
				"11 rescheduled, 1 running: left as they are."},
			"run_at = '2031-01-02 03:04:00Z'", 11, "to 2031-01-02T03:04:00Z", 11},
		{"reschedule", "&state=ready", "2031-01-02T03:04:05.5", "4 tasks", "Reschedule 4 tasks",
			[]string{"4 of 4 rescheduled"}, "run_at = '2031-01-02 03:04:05.5Z'", 4, "type T, state ready", 4},
		{"set_priority", "&state=scheduled", "-7", "3 tasks", "Set the priority of 3 tasks",
			[]string{"3 of 3 given the priority", "Priority: -7"}, "priority = -7", 3, "to priority -7", 3},
		{"retype", "", "NEW", "11 tasks", "Retype 11 tasks",
			[]string{"10 of 11 retyped", "New type: NEW",
				"10 retyped, 1 skipped: another task holds its unique key, 1 running: left as they are."},
			"task_type = 'NEW'", 10, "to type NEW", 10},
		{"retype", "&state=waiting", "NEW", "2 tasks", "Retype 2 tasks", []string{"2 of 2 retyped"},
			"task_type = 'NEW'", 2, "type T, state waiting", 2},
	} {
		t.Run(c.do+c.filter, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			plant(t, db, "T", "k1")
			plant(t, db, "OTHER", "k1")
			s := serve(t, db, dashboard.Config{Authorize: as(everything)})
			path := "bulk?do=" + c.do + "&type=T" + c.filter
			ask := s.get(t, path)
			ask.has(t, 200, c.asks, "Tasks that are enqueued after this question stay.", c.button)

			// No address has it begun, whatever is in it.
			link := s.get(t, path+"&value=1&total=12&done=1&left=1&until=9000000000000000&after=oldest.0")
			link.has(t, 200, c.asks, c.button)
			want, form := ask.form("bulk"), link.form("bulk")
			want.Del("until")
			if form.Del("until"); s.last(t) != "" || !maps.EqualFunc(form, want, slices.Equal) {
				t.Errorf("a link begins it, and the form has %v, want %v", form, want)
			}

			plant(t, db, "T", "k2") // after the question
			db.Do(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('NEW', 'k1')`)
			others := func() string {
				return db.Text(t, `SELECT string_agg(t::text, ' ' ORDER BY task_id) FROM outbox.task t
					WHERE task_id > 12`)
			}
			before := others()
			form = ask.form("bulk")
			form.Set("value", c.value)
			done := s.bulk(t, s.post(t, "bulk", form.Encode(), "HX-Request", "true"), "HX-Request", "true")
			done.has(t, 200, append(c.says, "Done.")...)
			const asked = `SELECT count(*) FROM outbox.task WHERE task_id <= 12 AND `
			if c.changed != "" {
				if n := db.Int(t, asked+c.changed); n != c.n {
					t.Errorf("%d tasks have %s, want %d", n, c.changed, c.n)
				}
			} else if n := db.Int(t, asked+"true"); n != 12-c.n {
				t.Errorf("%d of 12 tasks are left, want %d", n, 12-c.n)
			} else if n := db.Int(t, `SELECT count(*) FROM outbox.cancel`); n != c.count-c.n {
				t.Errorf("%d tasks are asked to end, want %d", n, c.count-c.n)
			}
			if after := others(); after != before {
				t.Errorf("tasks of another type, or of later, were changed from\n%s to\n%s", before, after)
			}
			entry := fmt.Sprintf(`^ada@example.com dashboard %s "tasks: .*%s.*" %d$`, c.do, c.audit, c.count)
			if got := s.last(t); !regexp.MustCompile(entry).MatchString(got) {
				t.Errorf("the audit log ends with %s, want %s", got, entry)
			}
			line := fmt.Sprintf(` actor=ada@example.com action=%s target="type T.*" count=%d\n`, c.do, c.count)
			if log := s.log.String(); !regexp.MustCompile(line).MatchString(log) {
				t.Errorf("the log is\n%s, want %s", log, line)
			}
			if log := s.log.String() + s.last(t); strings.Contains(log, "1234") || strings.Contains(log, "k1") {
				t.Errorf("a log has a payload or a key: %s", log)
			}
		})
	}
}

// Without script each request needs a click, and has what the first one was asked with.
func TestABulkActionOnTasksGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'MANY' FROM generate_series(1, 2500)`)
	db.Do(t, `CREATE FUNCTION outbox.boom() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN RAISE EXCEPTION 'boom'; END $$;
		CREATE TRIGGER boom BEFORE UPDATE ON outbox.task FOR EACH ROW WHEN (OLD.task_id = 1100)
		EXECUTE FUNCTION outbox.boom()`)
	s := serve(t, db, dashboard.Config{Authorize: as(everything)})
	form := s.get(t, "bulk?do=set_priority&type=MANY").form("bulk")
	s.post(t, "bulk", form.Encode()).has(t, 400, "The field “Priority” is empty.")
	form.Set("value", "7")
	part := s.post(t, "bulk", form.Encode())
	part.has(t, 200, "1,000 of 2,500 given the priority", "Priority: 7", "PostgreSQL refused this.",
		"Set the priority of the rest", "Stop here")
	db.Do(t, `DROP TRIGGER boom ON outbox.task`)
	db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ('MANY')`) // after the question
	s.bulk(t, part).has(t, 200, "2,500 of 2,500 given the priority", "Done.")
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE priority = 7`); n != 2500 {
		t.Errorf("%d tasks have the priority, want 2500", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.audit WHERE action = 'set_priority'`); n != 3 {
		t.Errorf("the audit log has %d entries, want one for each of 3 transactions", n)
	}
}
