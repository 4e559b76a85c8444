package relay_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// scheduleSQL returns columns of all schedules.
func scheduleSQL(columns string) string {
	return `SELECT string_agg(concat_ws(' ', ` + columns + `), ', ' ORDER BY name) FROM outbox.schedule`
}

// yearly and weekly, which is on Mondays at midnight UTC, do not fire by themselves while a test
// runs.
const (
	weekly = 168 * time.Hour
	yearly = 8760 * time.Hour
)

func TestManyMissedFiringsAreMadeUpForInSeveralTransactions(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "all", Timing: relay.Every(time.Second), CatchUp: relay.CatchUpAll})
	once(t, db, idle(), config)
	db.Do(t, `DELETE FROM outbox.task`) // what fired meanwhile, as it fires again now
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '3600 s'`)
	run(t, db, idle(), config)
	db.becomes(t, 30*time.Second, 1, "all are enqueued", `SELECT count(*) FROM outbox.schedule WHERE next_at > now()`)
	db.wantText(t, "0 true true", `SELECT count(*) - count(DISTINCT run_at) || ' ' || (count(*) >= 3600) || ' ' || (count(*) = extract(epoch FROM max(run_at) - min(run_at)) + 1) FROM outbox.task`)
}

func TestAChangedTimingIsComputedAnewAndAnUnchangedOneIsKept(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	start := func(s relay.Schedule) string {
		s.Name = "report"
		once(t, db, idle(), scheduled(s))
		return db.Text(t, scheduleSQL(`spec, task_type, payload, (next_at - date_trunc('week', now(), 'UTC'))::text, (SELECT count(*) FROM outbox.task)`))
	}
	zone := func(expression string) relay.Timing {
		s, err := cron.ParseStandard(expression)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got, want := start(relay.Schedule{Timing: relay.Every(weekly)}), `every 168h0m0s FIRED {"N": 1} 7 days 0`; got != want {
		t.Errorf("a new one is %q, want %q", got, want)
	}
	db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - interval '1 millisecond'`) // which shows that it is kept
	for _, c := range []struct {
		name string
		s    relay.Schedule
		want string
	}{
		{"the same", relay.Schedule{Timing: relay.Every(weekly)}, `every 168h0m0s FIRED {"N": 1} 6 days 23:59:59.999 0`},
		{"another payload", relay.Schedule{Timing: relay.Every(weekly), Task: relaytest.TypeFired.New(payload{N: 2})}, `every 168h0m0s FIRED {"N": 2} 6 days 23:59:59.999 0`},
		{"another catch-up", relay.Schedule{Timing: relay.Every(weekly), CatchUp: relay.CatchUpAll}, `every 168h0m0s FIRED {"N": 1} 6 days 23:59:59.999 0`},
		{"another spec", relay.Schedule{Timing: zone("0 0 * * 1"), Spec: "@weekly"}, `@weekly FIRED {"N": 1} 7 days 0`},
		{"a later timing of the same spec", relay.Schedule{Timing: relay.Every(8 * weekly), Spec: "@weekly"}, `@weekly FIRED {"N": 1} 7 days 0`},
		{"another period", relay.Schedule{Timing: relay.Every(2 * weekly)}, `every 336h0m0s FIRED {"N": 1} `},
	} {
		got := start(c.s)
		if !strings.HasPrefix(got, c.want) || strings.HasSuffix(c.want, " ") && strings.Contains(got, "59.999") {
			t.Errorf("%s: it is %q, want %q", c.name, got, c.want)
		}
	}
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
	db.wantText(t, "true 0 2", `SELECT (count(*) BETWEEN 363 AND 366) || ' ' || count(*) FILTER (WHERE to_char(run_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI:SS') <> '09:00:00') || ' ' ||
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
	db.wantText(t, "mine t f, theirs f t", scheduleSQL(`name, next_at > now(), last_at IS NULL`))
	db.want(t, 1, "tasks", `SELECT count(*) FROM outbox.task`)
	if err := relaytest.Admin(t, db.DB).RemoveSchedule(t.Context(), "theirs"); err != nil {
		t.Error(err)
	}
	db.wantText(t, "mine", scheduleSQL(`name`))
}

// A relay that runs with an older form of a schedule leaves it to those that know the new one.
func TestARelayDoesNotFireWhatAnotherProcessHasChanged(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	old := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly)}))
	db.becomes(t, 30*time.Second, 1, "it is registered", `SELECT count(*) FROM outbox.schedule`)
	run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(weekly), Task: relaytest.TypeFired.New(payload{N: 2})}))
	eventually(t, 30*time.Second, "the old relay has checked", func() bool { return old.Log.Count("changed by another process") == 1 })
	db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
	db.becomes(t, 30*time.Second, `{"N": 2}`, "the new relay fires it", `SELECT string_agg(payload::text, ', ') FROM outbox.task`)
}

// Each catches up as it says. What falls due during a pause is passed over.
func TestMissedFiringsAreMadeUpForOnceOrAll(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "all", Timing: relay.Every(weekly), CatchUp: relay.CatchUpAll}, relay.Schedule{Name: "once", Timing: relay.Every(weekly)})
	client := relaytest.Admin(t, db.DB)
	each := func(do func(context.Context, string) error) {
		for _, name := range []string{"all", "once"} {
			if err := do(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	fire := func(missed int) {
		db.Do(t, `DELETE FROM outbox.task`)
		db.Do(t, `UPDATE outbox.schedule SET next_at = next_at - $1 * interval '168 hours'`, missed)
		once(t, db, idle(), config)
	}
	want := func(tasks string) {
		t.Helper()
		db.wantText(t, tasks, `SELECT string_agg(concat(payload->>'N', ' ', (extract(epoch FROM date_trunc('week', now(), 'UTC') - run_at) / 604800)::int), ', ' ORDER BY payload, run_at) FROM outbox.task`)
		db.wantText(t, "all t all, once t once", scheduleSQL(`name, next_at = date_trunc('week', now(), 'UTC') + interval '168 hours', catch_up`))
	}
	fire(0) // it registers them
	want("")
	fire(5)
	want("1 4, 1 3, 1 2, 1 1, 1 0, 2 4")
	fire(0)
	want("")
	each(client.PauseSchedule)
	fire(3)
	want("")
	each(client.ResumeSchedule)
	fire(0)
	want("")
	fire(2)
	want("1 1, 1 0, 2 1")
}

func TestEveryFiresAtMultiplesOfItsPeriod(t *testing.T) {
	t.Parallel()
	monday := time.Date(2026, 3, 30, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]time.Duration{-weekly: 0, -100 * time.Hour: 0, -time.Microsecond: 0, 0: weekly} {
		if got := relay.Every(weekly).Next(monday.Add(after)); !got.Equal(monday.Add(want)) {
			t.Errorf("after %v: %v", monday.Add(after), got)
		}
	}
}
