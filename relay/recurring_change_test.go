package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// schedules checks columns of all schedules, in the order of their names.
func (db *database) schedules(t testing.TB, want, columns string) {
	t.Helper()
	db.want(t, want, "the schedules", `SELECT string_agg(concat_ws(' ', `+columns+`), ', ' ORDER BY name) FROM outbox.schedule`)
}

// yearly and weekly, which is on Mondays at midnight UTC, do not fire by themselves while a test runs.
const (
	weekly = 168 * time.Hour
	yearly = 8760 * time.Hour
)

func TestMissedFiringsAreMadeUpForOnceOrAll(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "all", Timing: relay.Every(weekly), CatchUp: relay.CatchUpAll}, relay.Schedule{Name: "once", Timing: relay.Every(weekly)})
	once(t, db, idle(), config)
	db.want(t, 0, "tasks before the first firing", `SELECT count(*) FROM outbox.task`)
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - 5 * interval '168 hours'`)
	for range 2 { // the second one finds nothing to do
		once(t, db, idle(), config)
		db.want(t, "1 4, 1 3, 1 2, 1 1, 1 0, 2 4", "tasks and the weeks ago of their run_at", `SELECT string_agg(concat(payload->>'N', ' ',
			(extract(epoch FROM date_trunc('week', now(), 'UTC') - run_at) / 604800)::int), ', ' ORDER BY payload, run_at) FROM outbox.task`)
		db.schedules(t, "all t all, once t once", `name, next_at = date_trunc('week', now(), 'UTC') + interval '168 hours', catch_up`)
	}
}

func TestManyMissedFiringsAreMadeUpForInSeveralTransactions(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "all", Timing: relay.Every(time.Second), CatchUp: relay.CatchUpAll})
	once(t, db, idle(), config)
	db.Do(t, `DELETE FROM outbox.task`) // what fired meanwhile, as it fires again now
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '3600 s'`)
	run(t, db, idle(), config)
	eventually(t, 30*time.Second, "all are enqueued", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.schedule WHERE next_at > now()`) == 1
	})
	db.want(t, "0 true true", "the firings are not there once each", `SELECT count(*) - count(DISTINCT run_at) || ' ' || (count(*) >= 3600) || ' ' || (count(*) = extract(epoch FROM max(run_at) - min(run_at)) + 1) FROM outbox.task`)
}

func TestAChangedTimingIsComputedAnewAndAnUnchangedOneIsKept(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	zone := func(expression string) relay.Timing {
		s, err := cron.ParseStandard(expression)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, c := range []struct {
		name string
		s    relay.Schedule
		want string // the days until the next firing are 56 where it was kept
	}{
		{"a new one", relay.Schedule{Timing: relay.Every(weekly)}, `every 168h0m0s FIRED {"N": 1} 7 once`},
		{"the same", relay.Schedule{Timing: relay.Every(weekly)}, `every 168h0m0s FIRED {"N": 1} 56 once`},
		{"another payload", relay.Schedule{Timing: relay.Every(weekly), Task: relaytest.TypeFired.New(payload{N: 2})}, `every 168h0m0s FIRED {"N": 2} 56 once`},
		{"another catch-up", relay.Schedule{Timing: relay.Every(weekly), CatchUp: relay.CatchUpAll}, `every 168h0m0s FIRED {"N": 1} 56 all`},
		{"another spec", relay.Schedule{Timing: zone("0 0 * * 1"), Spec: "@weekly"}, `@weekly FIRED {"N": 1} 7 once`},
		{"another timing of the same spec", relay.Schedule{Timing: zone("0,30 * * * *"), Spec: "@weekly"}, `@weekly FIRED {"N": 1} 56 once`},
		{"another period", relay.Schedule{Timing: relay.Every(weekly)}, `every 168h0m0s FIRED {"N": 1} 7 once`},
	} {
		c.s.Name = "report"
		once(t, db, idle(), scheduled(c.s))
		db.want(t, c.want, c.name, `SELECT concat_ws(' ', spec, task_type, payload, extract(day FROM next_at - date_trunc('week', now(), 'UTC')), catch_up) FROM outbox.schedule`)
		db.Do(t, `UPDATE outbox.schedule SET next_at = date_trunc('week', now(), 'UTC') + interval '56 days'`)
	}
	db.want(t, 0, "tasks", `SELECT count(*) FROM outbox.task`)
}

// A schedule of robfig/cron with a time zone: at nine in Berlin, summer and winter.
func TestACronExpressionHasItsTimeZone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	timing, err := cron.ParseStandard("CRON_TZ=Europe/Berlin 0 9 * * *")
	if err != nil {
		t.Fatal(err)
	}
	config := scheduled(relay.Schedule{Name: "nine", Timing: timing, CatchUp: relay.CatchUpAll, Spec: "CRON_TZ=Europe/Berlin 0 9 * * *"})
	once(t, db, idle(), config)
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '364 days'`)
	db.Do(t, `UPDATE outbox.schedule SET next_at = date_trunc('day', next_at AT TIME ZONE 'Europe/Berlin') AT TIME ZONE 'Europe/Berlin' + interval '9 hours' WHERE name = 'nine'`)
	once(t, db, idle(), config)
	db.want(t, "true 0 2", "a year of firings is there, firings not at nine, hours in UTC", `SELECT (count(*) BETWEEN 363 AND 366) || ' ' || count(*) FILTER (WHERE to_char(run_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI:SS') <> '09:00:00') || ' ' ||
		count(DISTINCT extract(hour FROM run_at AT TIME ZONE 'UTC')) FROM outbox.task`)
}

func TestSchedulesOfOtherBinariesStayAndAreNotFired(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	mine, theirs := relay.Schedule{Name: "mine", Timing: relay.Every(weekly)}, relay.Schedule{Name: "theirs", Timing: relay.Every(weekly)}
	once(t, db, idle(), scheduled(theirs))
	once(t, db, idle(), scheduled(mine))
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '168 hours'`)
	once(t, db, idle(), scheduled(mine))
	once(t, db, idle(), relay.Config{})
	db.schedules(t, "mine t f, theirs f t", `name, next_at > now(), last_at IS NULL`)
	db.want(t, 1, "tasks", `SELECT count(*) FROM outbox.task`)
	if err := relay.RemoveSchedule(t.Context(), db.DB, "theirs"); err != nil {
		t.Error(err)
	}
	db.schedules(t, "mine", `name`)
	for name, f := range map[string]func(context.Context, outbox.Querier, string, ...string) error{"Remove": relay.RemoveSchedule, "Pause": relay.PauseSchedule, "Resume": relay.ResumeSchedule} {
		if err := f(t.Context(), db.DB, "theirs"); !errors.Is(err, relay.ErrUnknownSchedule) {
			t.Errorf("%s of an unknown name: %v", name, err)
		}
		if err := f(t.Context(), db.DB, "theirs", "No Schema"); err == nil || errors.Is(err, relay.ErrUnknownSchedule) {
			t.Errorf("%s in a bad schema: %v", name, err)
		}
		if err := f(t.Context(), db.DB, ""); err == nil || errors.Is(err, relay.ErrUnknownSchedule) {
			t.Errorf("%s without a name: %v", name, err)
		}
	}
}

// A relay that runs with an older form of a schedule leaves it to those that know the new one.
func TestARelayDoesNotFireWhatAnotherProcessHasChanged(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	old := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly)}))
	eventually(t, 30*time.Second, "it is registered", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.schedule`) == 1 })
	once(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly), Task: relaytest.TypeFired.New(payload{N: 2})}))
	db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
	eventually(t, 30*time.Second, "the old relay has checked", func() bool { return old.Log.Count("changed by another process") == 1 })
	db.want(t, 0, "tasks were enqueued by the old relay", `SELECT count(*) FROM outbox.task`)
	once(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly), Task: relaytest.TypeFired.New(payload{N: 2})}))
	db.want(t, `{"N": 2}`, "tasks", `SELECT string_agg(payload::text, ', ') FROM outbox.task`)
}

func TestAPausedSchedulePassesItsFiringsOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "all", Timing: relay.Every(weekly), CatchUp: relay.CatchUpAll}, relay.Schedule{Name: "once", Timing: relay.Every(weekly)})
	once(t, db, idle(), config)
	forBoth := func(do func(context.Context, outbox.Querier, string, ...string) error) {
		if err := errors.Join(do(t.Context(), db.DB, "all"), do(t.Context(), db.DB, "once")); err != nil {
			t.Fatal(err)
		}
	}
	forBoth(relay.PauseSchedule)
	back := `UPDATE outbox.schedule SET next_at = next_at - 3 * interval '168 hours'`
	db.Do(t, back)
	once(t, db, idle(), config)
	db.schedules(t, "all t t 0, once t t 0", `name, paused, next_at > now(), (SELECT count(*) FROM outbox.task)`)
	forBoth(relay.ResumeSchedule)
	once(t, db, idle(), config)
	db.want(t, 0, "tasks for firings during the pause", `SELECT count(*) FROM outbox.task`)
	db.Do(t, back)
	once(t, db, idle(), config)
	db.want(t, 4, "tasks after the pause", `SELECT count(*) FROM outbox.task`)
}

func TestAScheduleIsPausedInACallersTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	once(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly)}))
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(relay.PauseSchedule(t.Context(), tx, "tick"), tx.Rollback()); err != nil {
		t.Fatal(err)
	}
	db.schedules(t, "f", `paused`)
	for _, pool := range []outbox.Querier{nil, sqlx.NewDb(db.DB, "postgres")} {
		if err := relay.PauseSchedule(t.Context(), pool, "tick"); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("%T: got %v", pool, err)
		}
	}
}
