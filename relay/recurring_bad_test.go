package relay_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// A Next that misbehaves ends its schedule, after the firing that was due, and nothing else.
func TestAScheduleWhoseNextMisbehavesStops(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	var wild atomic.Bool
	var calls atomic.Int64
	wildly := func(f func(time.Time) time.Time) relay.Timing {
		return nextFunc(func(at time.Time) time.Time {
			if !wild.Load() {
				return relay.Every(yearly).Next(at)
			}
			calls.Add(1)
			return f(at)
		})
	}
	bad := map[string]func(time.Time) time.Time{
		"zero":     func(time.Time) time.Time { return time.Time{} },
		"same":     func(at time.Time) time.Time { return at },
		"almost":   func(at time.Time) time.Time { return at.Add(time.Nanosecond) },
		"before":   func(at time.Time) time.Time { return at.Add(-time.Hour) },
		"far":      func(at time.Time) time.Time { return at.AddDate(9000, 0, 0) },
		"infinity": func(time.Time) time.Time { return time.Unix(1<<62, 0) },
	}
	schedules := []relay.Schedule{{Name: "good", Timing: relay.Every(yearly), Task: relaytest.TypeFired.New(payload{N: 9})}}
	for name, f := range bad {
		schedules = append(schedules, relay.Schedule{Name: name, Timing: wildly(f), CatchUp: relay.CatchUp(len(name) % 2)})
	}
	config := scheduled(schedules...)
	once(t, db, idle(), config)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
	r := run(t, db, idle(), config)
	db.becomes(t, 30*time.Second, len(schedules), "all have fired", `SELECT count(*) FROM outbox.schedule WHERE last_at IS NOT NULL`)
	wild.Store(true)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now() + interval '1 s', last_at = NULL`)
	db.becomes(t, 30*time.Second, len(schedules), "all have fired again", `SELECT count(*) FROM outbox.schedule WHERE last_at IS NOT NULL`)
	if n := db.Int(t, `SELECT count(*) FROM outbox.schedule WHERE next_at IS NULL`); n != len(bad) {
		t.Errorf("%d schedules ended, want %d: %s", n, len(bad), db.Text(t, scheduleSQL(`name, next_at`)))
	}
	db.want(t, 2*len(schedules), "tasks", `SELECT count(*) FROM outbox.task`)
	if n := calls.Load(); n > 3*int64(len(bad)) {
		t.Errorf("Next was called %d times", n)
	}
	if stopped, ended := r.Log.Count("as its Next misbehaves"), r.Log.Count("a schedule has ended"); stopped+ended != len(bad) {
		t.Errorf("the end of %d + %d schedules was logged, want %d\n%s", stopped, ended, len(bad), r.Log)
	}
	// It begins again at a start with a Next that works.
	wild.Store(false)
	r.Stop()
	once(t, db, idle(), config)
	db.want(t, 0, "schedules are still ended", `SELECT count(*) FROM outbox.schedule WHERE next_at IS NULL`)
}

// PostgreSQL may refuse what one schedule enqueues; the others fire.
func TestAScheduleWhoseTaskIsRefusedDoesNotStopOthers(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	config := scheduled(relay.Schedule{Name: "bad", Timing: relay.Every(yearly)}, relay.Schedule{Name: "good", Timing: relay.Every(yearly)})
	once(t, db, idle(), config)
	db.Do(t, `ALTER TABLE outbox.task ADD CONSTRAINT good CHECK (payload <> '{"N": 1}')`)
	db.Do(t, `UPDATE outbox.schedule SET next_at = now()`)
	r := run(t, db, idle(), config)
	db.becomes(t, 30*time.Second, 1, "the other one fires", `SELECT count(*) FROM outbox.task`)
	eventually(t, 30*time.Second, "it is logged", func() bool { return r.Log.Count("cannot be enqueued") == 1 })
	r.Stop()
	db.Do(t, `ALTER TABLE outbox.task DROP CONSTRAINT good`)
	once(t, db, idle(), config)
	db.want(t, 2, "tasks", `SELECT count(*) FROM outbox.task`)
}

func TestSchedulesWorkInASchemaOfAnotherNameAndWithTheirOptions(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema("other")); err != nil {
		t.Fatal(err)
	}
	config := scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly),
		Task: relaytest.TypeFired.New(payload{N: 3}, outbox.Priority(4), outbox.MaxAttempts(5), outbox.Headers(map[string]string{"k": "v"}), outbox.After(time.Hour))})
	config.Schema = "other"
	once(t, db, idle(), config)
	db.Do(t, `UPDATE other.schedule SET next_at = now()`)
	once(t, db, idle(), config)
	db.wantText(t, `4 5 {"k": "v"} {"N": 3} t ready`, `SELECT concat_ws(' ', priority, max_attempts, headers, payload, run_at <= now(), state) FROM other.task`)
	if err := relaytest.Admin(t, db.DB, "other").PauseSchedule(t.Context(), "tick"); err != nil {
		t.Error(err)
	}
	if err := relaytest.Admin(t, db.DB, "other").RemoveSchedule(t.Context(), "tick"); err != nil {
		t.Error(err)
	}
}

func TestBadSchedulesAreRefusedByNew(t *testing.T) {
	t.Parallel()
	db := open(t, "postgres://nobody@localhost:1/none")
	good := relaytest.TypeFired.New(payload{})
	for want, s := range map[string]relay.Schedules{
		`Config.Schedules[0] "": Name: it is empty`:                                                   {{Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[1] "a": there are two of this Name`:                                         {{Name: "a", Timing: relay.Every(yearly), Task: good}, {Name: "a", Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[0] "a\n": Name: '\n' does not print`:                                        {{Name: "a\n", Timing: relay.Every(yearly), Task: good}},
		`Name: 129 bytes, at most 128`:                                                                {{Name: strings.Repeat("a", 129), Timing: relay.Every(yearly), Task: good}},
		`Config.Schedules[0] "a": Timing: it is nil`:                                                  {{Name: "a", Task: good}},
		`Config.Schedules[0] "a": Spec: it is empty: give the text of the cron expression`:            {{Name: "a", Timing: nextFunc(relay.Every(yearly).Next), Task: good}},
		`Config.Schedules[0] "a": the Timing Every(0s) must be at least 10ms, in whole microseconds`:  {{Name: "a", Timing: relay.Every(0), Task: good}},
		`Config.Schedules[0] "a": the Timing Every(-1s) must be at least 10ms, in whole microseconds`: {{Name: "a", Timing: relay.Every(-time.Second), Task: good}},
		`Timing: its Next panicked: panic: boom`:                                                      {{Name: "a", Timing: nextFunc(func(time.Time) time.Time { panic("boom") }), Spec: "1", Task: good}},
		`Config.Schedules[0] "a": the CatchUp 7 must be CatchUpOnce or CatchUpAll`:                    {{Name: "a", Timing: relay.Every(yearly), Task: good, CatchUp: 7}},
		`Config.Schedules[0] "a": Spec: '\x00' does not print`:                                        {{Name: "a", Timing: relay.Every(yearly), Task: good, Spec: "\x00"}},
		`Config.Schedules[0] "a": Task: outbox: invalid task type: it is empty`:                       {{Name: "a", Timing: relay.Every(yearly)}},
		`Config.Schedules[0] "a": Task: outbox: invalid payload`:                                      {{Name: "a", Timing: relay.Every(yearly), Task: outbox.NewTask{Type: "A", Payload: func() {}}}},
		`Config.Schedules[0] "a": Task: outbox: invalid option: Priority(99999): must be between -32`: {{Name: "a", Timing: relay.Every(yearly), Task: relaytest.TypeFired.New(payload{}, outbox.Priority(99999))}},
	} {
		_, err := relay.New(db.DB, idle(), relay.Config{Schedules: s})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestEveryFiresAtMultiplesOfItsPeriod(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		d           time.Duration
		after, want string
	}{
		{time.Minute, "2026-03-29T00:59:30.5Z", "2026-03-29T01:00:00Z"},
		{time.Minute, "2026-03-29T01:00:00Z", "2026-03-29T01:01:00Z"},
		{15 * time.Minute, "2026-03-29T00:59:59.999999Z", "2026-03-29T01:00:00Z"},
		{24 * time.Hour, "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z"},
		{7 * 24 * time.Hour, "2026-03-29T12:00:00Z", "2026-03-30T00:00:00Z"}, // a Monday
	} {
		if got := relay.Every(c.d).Next(at(c.after)); !got.Equal(at(c.want)) {
			t.Errorf("Every(%v) after %s: %v, want %s", c.d, c.after, got, c.want)
		}
	}
}

// A firing that is a little late does not move those after it.
func TestATimingThatCountsFromTheLastFiringDoesNotDrift(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, catchUp := range []relay.CatchUp{relay.CatchUpOnce, relay.CatchUpAll} {
		db := newDatabase(t)
		config := scheduled(relay.Schedule{Name: "tick", CatchUp: catchUp, Timing: nextFunc(func(at time.Time) time.Time { return at.Add(time.Hour) })})
		once(t, db, idle(), config)
		db.Do(t, `UPDATE outbox.schedule SET next_at = now() - interval '30 minutes'`)
		once(t, db, idle(), config)
		db.wantText(t, "01:00:00 t", scheduleSQL(`next_at - last_at, next_at > now()`))
	}
}

// Schedules that cannot be worked with do not keep the relay from its tasks.
func TestTasksRunAlthoughSchedulesCannotBeWorkedWith(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.schedule RENAME TO away`)
	r := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly)}))
	eventually(t, 30*time.Second, "a second failure", func() bool { return r.Log.Count("add the schedule") >= 2 })
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 30*time.Second)
	r.Log.Want(t, 1, "schedules cannot be worked with")
	db.Do(t, `ALTER TABLE outbox.away RENAME TO schedule`)
	db.becomes(t, 30*time.Second, 1, "it is registered", `SELECT count(*) FROM outbox.schedule`)
}
