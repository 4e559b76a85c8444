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
