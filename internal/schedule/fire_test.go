package schedule_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// week has its firings on Mondays at midnight UTC.
const week = 168 * time.Hour

func columns(t *testing.T, db *relaytest.Database, of string) string {
	t.Helper()
	return db.Text(t, `SELECT COALESCE(string_agg(concat_ws(' ', `+of+`), ', ' ORDER BY name), '') FROM outbox.schedule`)
}

func fired(t *testing.T, db *relaytest.Database) string {
	t.Helper()
	return db.Text(t, `SELECT COALESCE(string_agg(payload::text, ' ' ORDER BY payload), '') FROM outbox.task`)
}

// The app may use its slice of options again.
func TestAFiringHasTheOptionsThatItsScheduleHadAtFirst(t *testing.T) {
	t.Parallel()
	db, options := relaytest.NewDatabase(t), []outbox.Option{outbox.Priority(3)}
	p := start(t, db, schedule.Schedule{Name: "kept", Timing: each(week), Task: outbox.TaskSpec{Type: "A", Payload: 1, Options: options}})
	options[0] = outbox.Priority(7)
	p.pass(t)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
	p.pass(t)
	db.Want(t, "1 3", `SELECT concat(count(*), ' ', min(priority)) FROM outbox.task`)
}

// Each catches up as it says, in several transactions if need be. A firing during a pause is passed
// over.
func TestMissedFiringsAreMadeUpForOnceOrAll(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	once := schedule.Schedule{Name: "once", Timing: each(week), Task: outbox.TaskSpec{Type: "A", Payload: 2}}
	all := schedule.Schedule{Name: "all", Timing: each(week), Task: outbox.TaskSpec{Type: "A", Payload: 1}, CatchUp: outbox.CatchUpAll}
	p := start(t, db, all, once)
	admin := relaytest.Admin(t, db.DB)
	both := func(do func(context.Context, string) error) {
		for _, name := range []string{"all", "once"} {
			relaytest.Must(do(t.Context(), name))
		}
	}
	for i, c := range []struct {
		before func()
		missed int
		want   string // payload and age in weeks
	}{
		{nil, 0, ""}, // they are registered
		{nil, 5, "1 4, 1 3, 1 2, 1 1, 1 0, 2 4"},
		{nil, 0, ""},
		{func() { both(admin.PauseSchedule) }, 3, ""},
		{func() { both(admin.ResumeSchedule) }, 0, ""},
		{nil, 2, "1 1, 1 0, 2 1"},
	} {
		if c.before != nil {
			c.before()
		}
		db.Do(t, `DELETE FROM outbox.task`)
		db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - $1 * interval '168 hours'`, c.missed)
		p.pass(t)
		const ages = `SELECT COALESCE(string_agg(concat(payload, ' ',
			(extract(epoch FROM date_trunc('week', now(), 'UTC') - run_at) / 604800)::int), ', ' ORDER BY payload, run_at), '')
			FROM outbox.task`
		if got := db.Text(t, ages); got != c.want {
			t.Errorf("step %d: fired %q, want %q", i, got, c.want)
		}
		got := columns(t, db, `name, next_at = date_trunc('week', now(), 'UTC') + interval '168 hours', catch_up`)
		if got != "all t all, once t once" {
			t.Errorf("step %d: schedules are %s", i, got)
		}
	}
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - 2500 * interval '168 hours' WHERE name = 'all';
		DELETE FROM outbox.task`)
	for range 3 {
		p.pass(t)
	}
	got := db.Text(t, `SELECT concat_ws(' ', count(*), count(DISTINCT run_at),
		(SELECT min(next_at) > now() FROM outbox.schedule)) FROM outbox.task`)
	if got != "2500 2500 t" {
		t.Errorf("of 2,500 missed firings: %s", got)
	}
}

func TestAChangedTimingIsComputedAnewAndAnUnchangedOneIsKept(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	register := func(s schedule.Schedule) string {
		start(t, db, s).pass(t)
		return columns(t, db, `spec, payload, catch_up, (next_at - date_trunc('week', now(), 'UTC'))::text`)
	}
	plain := schedule.Schedule{Name: "report", Timing: each(week), Spec: "every week", Task: outbox.TaskSpec{Type: "A"}}
	if got, want := register(plain), `every week null once 7 days`; got != want {
		t.Errorf("a new one is %q, want %q", got, want)
	}
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '1 millisecond'`) // which shows that it is kept
	for _, c := range []struct {
		name   string
		change func(*schedule.Schedule)
		want   string
	}{
		{"the same", func(*schedule.Schedule) {}, `every week null once 6 days 23:59:59.999`},
		{"payload", func(s *schedule.Schedule) { s.Task.Payload = 2 }, `every week 2 once 6 days 23:59:59.999`},
		{"catch-up", func(s *schedule.Schedule) { s.CatchUp = outbox.CatchUpAll }, `every week null all 6 days 23:59:59.999`},
		{"spec", func(s *schedule.Schedule) { s.Spec = "@weekly" }, `@weekly null once 7 days`},
		{"a later timing of the same spec", func(s *schedule.Schedule) { s.Spec, s.Timing = "@weekly", each(8*week) },
			`@weekly null once 7 days`},
	} {
		s := plain
		c.change(&s)
		if got := register(s); got != c.want {
			t.Errorf("%s: it is %q, want %q", c.name, got, c.want)
		}
	}
}

// A schedule whose Next misbehaves ends after the firing that was due. A schedule whose task
// PostgreSQL refuses stays due. Others fire meanwhile, and both go on once they work.
func TestAScheduleThatMisbehavesStopsAlone(t *testing.T) {
	t.Parallel()
	db, wild := relaytest.NewDatabase(t), false
	schedules := []schedule.Schedule{{Name: "good", Timing: each(week)}, {Name: "refused", Timing: each(week)},
		{Name: "wild", Timing: nextFunc(func(at time.Time) time.Time {
			if wild {
				return at
			}
			return each(week).Next(at)
		})}}
	for i := range schedules {
		schedules[i].Task = outbox.TaskSpec{Type: "A", Payload: i}
	}
	p := start(t, db, schedules...)
	p.pass(t)
	db.Do(t, `ALTER TABLE outbox.task ADD CONSTRAINT good CHECK (payload <> '1');
		UPDATE outbox.schedule SET next_at = now()`)
	wild = true
	p.passes(t)
	if got := fired(t, db); got != "0 2" {
		t.Errorf("%q fired, want the others", got)
	}
	for _, text := range []string{"cannot be enqueued", "as its Next misbehaves"} {
		if n := strings.Count(p.log.String(), text); n != 1 {
			t.Errorf("%d records that a schedule %s", n, text)
		}
	}
	if got := columns(t, db, `name, next_at IS NULL`); got != "good f, refused f, wild t" {
		t.Errorf("schedules are %s", got)
	}
	wild = false
	db.Do(t, `ALTER TABLE outbox.task DROP CONSTRAINT good`)
	start(t, db, schedules...).pass(t)
	if got, ended := fired(t, db), columns(t, db, `next_at IS NULL`); got != "0 1 2" || ended != "f, f, f" {
		t.Errorf("once they work, %q fired; ended: %s", got, ended)
	}
}

type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(t time.Time) time.Time { return f(t) }
