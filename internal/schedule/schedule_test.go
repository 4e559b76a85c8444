package schedule_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

type each time.Duration

func (d each) Next(t time.Time) time.Time { return t.Truncate(time.Duration(d)).Add(time.Duration(d)) }

// process is one that has a schedule, of which each call of pass is what its loop does at a time.
type process struct {
	*schedule.Scheduler
	log strings.Builder
}

func newProcess(t *testing.T, db *relaytest.Database, payload int) *process {
	t.Helper()
	task := outbox.TaskSpec{Type: "A", Payload: payload}
	return start(t, db, schedule.Schedule{Name: "hourly", Spec: "1", Timing: each(time.Hour), Task: task})
}

func start(t *testing.T, db *relaytest.Database, schedules ...schedule.Schedule) *process {
	t.Helper()
	for i := range schedules {
		if schedules[i].Spec == "" {
			schedules[i].Spec = "of a test"
		}
		if wrong := schedules[i].Prepare(); wrong != nil {
			t.Fatal(wrong)
		}
	}
	p, pool := &process{}, pg.NewPool(db.DB)
	t.Cleanup(pool.Close)
	p.Scheduler = schedule.New(schedule.Params{Schedules: schedules, Schema: "outbox", Pool: pool,
		Log:     slog.New(slog.NewTextHandler(&p.log, nil)),
		Refused: func(context.Context, string, error) bool { return false }})
	return p
}

// pass passes over the schedules, again where a busy machine took longer than a statement may.
func (p *process) pass(t *testing.T) {
	t.Helper()
	err := p.Once(t.Context())
	for range 5 {
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
		t.Log("a pass took too long:", err)
		err = p.Once(t.Context())
	}
	relaytest.Must(err)
}

// passes are two: one sees what became of the schedule, the next one mends it.
func (p *process) passes(t *testing.T) {
	t.Helper()
	p.pass(t)
	p.pass(t)
}

func payloadIs(t *testing.T, db *relaytest.Database, want string) {
	t.Helper()
	if got := db.Text(t, `SELECT string_agg(payload::text, ', ') FROM outbox.schedule`); got != want {
		t.Errorf("the table has the schedule of %q, want %q", got, want)
	}
}

// A schedule whose row is gone, by whomever and however, is there again soon.
func TestAScheduleThatIsGoneIsRegisteredAgain(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	p := newProcess(t, db, 1)
	p.pass(t)
	payloadIs(t, db, "1")
	db.Do(t, `DELETE FROM outbox.schedule`)
	p.passes(t)
	payloadIs(t, db, "1")
}

// A schedule that another process has changed is that process's while it lives. Then those that run
// with another form of it take it back.
func TestAScheduleThatNobodyFiresIsTakenBack(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	stable, canary := newProcess(t, db, 1), newProcess(t, db, 2)
	stable.pass(t)
	canary.pass(t)
	definition := db.Text(t, `SELECT definition FROM outbox.schedule`)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, schedules)
		VALUES (gen_random_uuid(), 'canary', 1, now() + interval '1 hour', '{A}',
		jsonb_build_object('hourly', $1::text))`, definition)
	stable.passes(t)
	payloadIs(t, db, "2")
	db.Do(t, `UPDATE outbox.relay SET schedules = NULL`) // of an older version, which does not say
	stable.passes(t)
	payloadIs(t, db, "2")
	db.Do(t, `UPDATE outbox.schedule SET next_at = now() - interval '10 minutes'`) // whoever lives, nobody fires it
	stable.passes(t)
	payloadIs(t, db, "1")

	other := newProcess(t, db, 2) // starts: the last one counts
	other.pass(t)
	payloadIs(t, db, "2")
	db.Do(t, `UPDATE outbox.relay SET alive_until = now() - interval '1 second'`)
	stable.passes(t)
	payloadIs(t, db, "1")
	if n := strings.Count(stable.log.String(), "changed by another process"); n != 1 {
		t.Errorf("%d records of the change by a process that lives\n%s", n, stable.log.String())
	}
}

// Times that were written while the server's clock was ahead do not put a schedule off, neither for
// a relay that runs nor for one that starts.
func TestAClockThatWasAheadDoesNotStopASchedule(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	runs := newProcess(t, db, 1)
	runs.pass(t)
	for name, p := range map[string]*process{"runs": runs, "starts": newProcess(t, db, 1),
		"starts with another payload": newProcess(t, db, 2)} {
		db.Do(t, `UPDATE outbox.schedule SET next_at = now() + interval '25 hours', last_at = now() + interval '24 hours'`)
		p.passes(t)
		if in := db.Int(t, `SELECT extract(epoch FROM next_at - now())::int FROM outbox.schedule`); in > 3600 {
			t.Errorf("for a relay that %s, it fires in %d s, want within the hour", name, in)
		}
	}
	// A schedule that is right is left as it is.
	db.Do(t, `INSERT INTO outbox.schedule SELECT (jsonb_populate_record(s, '{"name": "other"}')).* FROM outbox.schedule s;
		UPDATE outbox.schedule SET next_at = now() + interval '25 hours'`)
	newProcess(t, db, 2).passes(t)
	if n := db.Int(t, `SELECT count(*) FROM outbox.schedule WHERE next_at < now() + interval '24 hours'`); n != 1 {
		t.Errorf("%d schedules are set back, want the relay's own", n)
	}
	db.Do(t, `DELETE FROM outbox.schedule WHERE name = 'other'`)
	// What the timing itself gives stays, to the microsecond.
	next := db.Text(t, `SELECT next_at::text FROM outbox.schedule`)
	newProcess(t, db, 2).passes(t)
	if got := db.Text(t, `SELECT next_at::text FROM outbox.schedule`); got != next {
		t.Errorf("next at %s, and then at %s", next, got)
	}
}

// A relay that fires a schedule has locked its row. Another relay passes over the schedule.
func TestTwoRelaysFireAScheduleOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	p := newProcess(t, db, 1)
	p.pass(t)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now() - interval '1 minute'`)
	release := db.Hold(t, `SELECT FROM outbox.schedule FOR UPDATE`)
	for _, want := range []int{0, 1, 1} {
		p.pass(t)
		if got := db.Int(t, `SELECT count(*) FROM outbox.task`); got != want {
			t.Errorf("%d tasks, want %d", got, want)
		}
		release()
	}
}

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
