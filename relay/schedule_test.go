package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// nextFunc is a Timing.
type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(t time.Time) time.Time { return f(t) }

func (f nextFunc) String() string { return "of a test" }

// spec is a Timing with another text.
type spec struct {
	relay.Timing
	text string
}

func (s spec) String() string {
	if s.text == "boom" {
		panic("boom")
	}
	return s.text
}

// scheduled is a Config with the schedules, which enqueue tasks of the type FIRED unless they say otherwise.
func scheduled(schedules ...relay.Schedule) relay.Config {
	for i := range schedules {
		if schedules[i].Task.Type == "" {
			schedules[i].Task = relaytest.TypeFired.New(payload{N: i + 1})
		}
	}
	return relay.Config{Schedules: schedules, PollInterval: 100 * time.Millisecond}
}

// idle is a registry without a handler for what is fired, so that the tasks stay.
func idle() *handlers.Registry {
	reg := handlers.New()
	registerTx(reg, typeTx, txEffect)
	return reg
}

// yearly and weekly, which is on Mondays at midnight UTC, do not fire by themselves while a test
// runs.
const (
	weekly = 168 * time.Hour
	yearly = 8760 * time.Hour
)

// No client's clock matters: with a database whose clock is three hours behind, all times are three hours back.
func TestTheTimesOfFiringsAreTheDatabases(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE SCHEMA behind;
		CREATE FUNCTION behind.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT pg_catalog.now() - interval
		'3 hours' $$;
		CREATE FUNCTION behind.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT
		pg_catalog.clock_timestamp() - interval '3 hours' $$`)
	var asked atomic.Int64 // the latest time that Next was asked for, in µs
	run(t, open(t, with(t, db.URL, "search_path", "behind,pg_catalog,public")), idle(),
		scheduled(relay.Schedule{Name: "tick", Timing: nextFunc(func(at time.Time) time.Time {
			asked.Store(at.UnixMicro())
			if at.Location() != time.UTC {
				t.Errorf("Next was asked in %v", at.Location())
			}
			return relay.Every(200 * time.Millisecond).Next(at)
		})}))
	eventually(t, 30*time.Second, "some firings", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'FIRED'`) >= 3
	})
	db.want(t, 0, "firings do not have the database's time", `SELECT count(*) FROM outbox.task WHERE task_type = 'FIRED'
		AND NOT run_at BETWEEN now() - interval '4 h' AND now() - interval '3 h'`)
	if behind := time.Since(time.UnixMicro(asked.Load())); behind < 179*time.Minute || behind > 4*time.Hour {
		t.Errorf("Next was asked for the time %v ago", behind)
	}
}

func TestEveryFiresAtMultiplesOfItsPeriod(t *testing.T) {
	t.Parallel()
	monday := time.Date(2026, 3, 30, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]time.Duration{-weekly: 0, -100 * time.Hour: 0, -time.Microsecond: 0,
		0: weekly} {
		if got := relay.Every(weekly).Next(monday.Add(after)); !got.Equal(monday.Add(want)) {
			t.Errorf("after %v: %v", monday.Add(after), got)
		}
	}
}

// The text is in the table: another one computes the next firing anew.
func TestTheTextOfATimingHasAllThatItFiresBy(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	nine := relay.Cron(cron.ParseStandard, "0 9 * * *")
	zone, err := time.LoadLocation("America/New_York")
	must(err)
	once(t, db, idle(), scheduled(relay.Schedule{Name: "1", Timing: relay.Every(yearly)}, relay.Schedule{Name: "2", Timing: nine},
		relay.Schedule{Name: "3", Timing: relay.InZone(zone, nine)}))
	db.wantText(t, "every 8760h0m0s|0 9 * * *|0 9 * * * in America/New_York",
		`SELECT string_agg(spec, '|' ORDER BY name) FROM outbox.schedule`)
}

func TestBadSchedulesAreRefusedByNew(t *testing.T) {
	t.Parallel()
	db := open(t, "postgres://nobody@localhost:1/none")
	good, year := relaytest.TypeFired.New(payload{}), relay.Every(yearly)
	for want, one := range map[string]relay.Schedule{
		`Name: it is empty`:                                  {Timing: year, Task: good},
		`Name: '\n' does not print`:                          {Name: "a\n", Timing: year, Task: good},
		`Name: 129 bytes, at most 128`:                       {Name: strings.Repeat("a", 129), Timing: year, Task: good},
		`there are two of this Name`:                         {Name: "twice", Timing: year, Task: good},
		`Timing: it is nil`:                                  {Name: "a", Task: good},
		`Timing: its String is empty`:                        {Name: "a", Timing: spec{year, ""}, Task: good},
		`Timing: its String: '\x00' does`:                    {Name: "a", Timing: spec{year, "\x00"}, Task: good},
		`Timing: its String panicked: panic: boom`:           {Name: "a", Timing: spec{year, "boom"}, Task: good},
		`Timing: Every(0s): it must be at least 10ms`:        {Name: "a", Timing: relay.Every(0), Task: good},
		`Timing: Every(-1s): it must be`:                     {Name: "a", Timing: relay.Every(-time.Second), Task: good},
		`Timing: Cron: "0 9 * *": expected exactly 5 fields`: {Name: "a", Timing: relay.Cron(cron.ParseStandard, "0 9 * *"), Task: good},
		`Timing: Cron: "0 9 * * 8": `:                        {Name: "a", Timing: relay.InZone(time.UTC, relay.Cron(cron.ParseStandard, "0 9 * * 8")), Task: good},
		`Timing: Cron: the parser is nil`:                    {Name: "a", Timing: relay.Cron[cron.Schedule](nil, "0 9 * * *"), Task: good},
		`Timing: its Next panicked: panic: runtime error: invalid memory`: {Name: "a", Task: good,
			Timing: relay.Cron(func(string) (cron.Schedule, error) { return nil, nil }, "0 9 * * *")},
		`Timing: InZone: the zone is nil`:   {Name: "a", Timing: relay.InZone(nil, year), Task: good},
		`Timing: InZone: the timing is nil`: {Name: "a", Timing: relay.InZone(time.UTC, nil), Task: good},
		`CatchUp: "7": it must be`:          {Name: "a", Timing: year, Task: good, CatchUp: "7"},
		`Task: outbox: invalid task ty`:     {Name: "a", Timing: year},
		`Task: outbox: invalid payload`:     {Name: "a", Timing: year, Task: outbox.TaskSpec{Type: "A", Payload: func() {}}},
		`Task: outbox: invalid option`: {Name: "a", Timing: year,
			Task: relaytest.TypeFired.New(payload{}, outbox.Priority(99999))},
		`Task: outbox: invalid option: `: {Name: "a", Timing: year, Task: relaytest.TypeFired.New(payload{}, nil)},
		`Timing: its Next panicked: panic: boom`: {Name: "a", Task: good,
			Timing: nextFunc(func(time.Time) time.Time { panic("boom") })},
	} {
		s := []relay.Schedule{{Name: "twice", Timing: year, Task: good}, one}
		want = fmt.Sprintf("Config.Schedules[1] %.32q: %s", one.Name, want)
		_, err := relay.New(db.DB, idle(), relay.Config{Schedules: s})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	_, err := relay.New(db.DB, idle(), relay.Config{Schedules: []relay.Schedule{{}}})
	for _, want := range []string{`Name: it is empty`, `Timing: it is nil`, `Task: outbox: invalid task type`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of a schedule with several faults: got %v, want %s, too", err, want)
		}
	}
}

func TestSchedulesWorkInASchemaOfAnotherNameAndWithTheirOptions(t *testing.T) {
	t.Parallel()
	db := open(t, relaytest.Migrated(t, schema.Schema("other")))
	config := scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly),
		Task: relaytest.TypeFired.New(payload{N: 3}, outbox.Priority(4), outbox.MaxAttempts(5),
			outbox.Headers(map[string]string{"k": "v"}), outbox.After(time.Hour))})
	config.Schema = "other"
	once(t, db, idle(), config)
	db.Do(t, `UPDATE other.schedule SET next_at = now()`)
	once(t, db, idle(), config)
	db.wantText(t, `4 5 {"k": "v"} {"N": 3} t ready`, `SELECT concat_ws(' ', priority, max_attempts, headers, payload,
		run_at <= now(), state) FROM other.task`)
}

// When clocks change, an expression of robfig/cron with a zone fires twice or never. InZone fires once.
func TestTimesOfDayWhereClocksChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, spec, day, want string }{ // two days from this one on
		{"America/New_York", "30 1 * * *", "2026-11-01", "01:30-04 01:30-05"},
		{"America/New_York", "30 2 * * *", "2026-03-08", "03:00-04 02:30-04"},
		{"America/New_York", "0 9 * * *", "2026-03-08", "09:00-04 09:00-04"},
		{"Europe/Berlin", "0 2 * * *", "2026-10-25", "02:00+02 02:00+01"},
		{"Europe/London", "0 1 * * *", "2026-03-29", "02:00+01 01:00+01"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-05", "01:45+11 01:45+1030"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-04", "02:30+11 02:15+11"},
		{"Africa/Casablanca", "30 2 * * *", "2026-02-15", "02:30+01 02:30+00"},
		{"America/Santiago", "30 23 * * *", "2026-04-04", "23:30-03 23:30-04"},
		{"America/Santiago", "0 0 * * *", "2026-09-06", "01:00-03 00:00-03"},
		{"Asia/Kathmandu", "30 2 * * *", "2026-03-29", "02:30+0545 02:30+0545"},
		{"Pacific/Apia", "30 12 * * *", "2011-12-29", "12:30-10"},
		{"Pacific/Apia", "30 12 * * *", "2011-12-31", "00:00+14 12:30+14 12:30+14"},
		// An hourly one goes on by the clocks.
		{"Europe/Berlin", "0 1-3 * * *", "2026-10-25", "01:00+02 02:00+02 03:00+01 01:00+01 02:00+01 03:00+01"},
		{"Europe/Berlin", "0 1-3 * * *", "2026-03-29", "01:00+01 03:00+02 01:00+02 02:00+02 03:00+02"},
	} {
		zone, err := time.LoadLocation(c.zone)
		must(err)
		day, err := time.Parse(time.DateOnly, c.day)
		must(err)
		plain := relay.Cron(cron.ParseStandard, c.spec)
		day = time.Date(day.Year(), day.Month(), day.Day(), 0, 0, 0, 0, zone)
		var fires []string
		at := relay.InZone(zone, plain).Next(day.Add(-time.Microsecond).UTC())
		for ; at.Before(day.AddDate(0, 0, 2)) && len(fires) < 10; at = relay.InZone(zone, plain).Next(at) {
			fires = append(fires, strings.TrimSuffix(at.In(zone).Format("15:04-0700"), "00"))
		}
		if got := strings.Join(fires, " "); got != c.want {
			t.Errorf("%s in %s on %s: %s, want %s", c.spec, c.zone, c.day, got, c.want)
		}
	}
}

// The next firing after any time before it is the same, as the schedule's row and its checks need it, and
// each day has one.
func TestATimeOfDayInAZoneIsTheSameFromAnyTimeBefore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"} {
		zone, err := time.LoadLocation(name)
		must(err)
		for _, spec := range []string{"30 1 * * *", "15 2 * * *", "0 0 * * *"} {
			timing, n := relay.InZone(zone, relay.Cron(cron.ParseStandard, spec)), 0
			var next time.Time
			for at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC); at.Year() < 2027; at = at.Add(10 * time.Minute) {
				if !next.After(at) {
					next, n = timing.Next(at), n+1
				}
				if got := timing.Next(at); !got.Equal(next) {
					t.Fatalf("%s in %s: after %v comes %v, and before it was %v", spec, name, at, got, next)
				}
			}
			if n < 364 || n > 366 {
				t.Errorf("%s in %s: %d firings in a year", spec, name, n)
			}
		}
	}
}

// timetable notes, by the database's clock, how late after their run_at tasks started.
type timetable struct {
	clock *database
	late  chan time.Duration
}

func newTimetable(t testing.TB, db *database) timetable {
	clock := open(t, db.URL) // a connection is at hand, whatever the handler's own is busy with
	clock.SetMaxIdleConns(50)
	return timetable{clock, make(chan time.Duration, 1000)}
}

func (tt timetable) start(ctx context.Context, runAt time.Time) error {
	var us int64
	err := tt.clock.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp() - $1::timestamptz)
		* 1000000)::bigint`, runAt).Scan(&us)
	tt.late <- time.Duration(us) * time.Microsecond
	return err
}

// punctual checks that n tasks start, and none before its time; with OUTBOX_TEST_TIMING=1, that
// half of a round start within 50 ms of it.
func (tt timetable) punctual(t testing.TB, n int, round func()) {
	t.Helper()
	quick(t, .5, 50*time.Millisecond, func() (all delays) {
		round()
		for range n {
			select {
			case late := <-tt.late:
				if all = append(all, late); late < 0 {
					t.Errorf("a task started %v before its time", -late)
				}
			case <-time.After(45 * time.Second): // less than the poll interval
				t.Fatal("a task that was due did not start within 45 s")
			}
		}
		return all
	})
}

// Another process schedules tasks of twenty types while the relay sleeps. With NOTIFY it learns of
// them at once, although it would poll only once a minute; without it by a poll, as long as they
// lie further ahead.
func TestScheduledTasksStartAtTheirTimeWithoutAPoll(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for name, config := range map[string]relay.Config{
		"notified": {PollInterval: time.Minute, ListenDSN: "yes"},
		"polling":  {PollInterval: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			db, reg := newDatabase(t), handlers.New()
			tt := newTimetable(t, db)
			const types = 20
			for i := range types {
				registerTx(reg, outbox.NewTaskType[payload](fmt.Sprint("TYPE", i)),
					func(ctx context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
						return tt.start(ctx, task.RunAt)
					})
			}
			if config.ListenDSN != "" {
				config.ListenDSN = db.URL
			}
			run(t, open(t, db.URL), reg, config)
			if config.ListenDSN != "" {
				listening(t, db)
			}
			tt.punctual(t, types, func() {
				db.Do(t, `INSERT INTO outbox.task (task_type, run_at)
					SELECT 'TYPE' || n, clock_timestamp() + (300 + n * 40) * interval '1 ms'
					FROM generate_series(0, $1::int - 1) n`, types)
				if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`); n == 0 {
					t.Error("no task is scheduled")
				}
			})
		})
	}
}

// A retry is as punctual as what was scheduled by the app. The relay would poll only once a minute.
func TestRetriesStartAtTheirTimeWithoutAPoll(t *testing.T) {
	needs.Long(t)
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			tt := newTimetable(t, db)
			each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
				if task.Attempt == 1 {
					return errAlways
				}
				return tt.start(ctx, task.RunAt)
			}, handlers.Backoff(constant(400*time.Millisecond)), handlers.NoJitter())
			run(t, db, reg, relay.Config{PollInterval: time.Minute})
			tasks := slices.Repeat([]outbox.TaskSpec{{Type: kind, Payload: payload{}}}, 8)
			tt.punctual(t, 8, func() { relaytest.EnqueueAll(db.DB, tasks...) })
		})
	}
}

func TestAnIdleRelayFiresWithoutAPoll(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	tt := newTimetable(t, db)
	registerTx(reg, relaytest.TypeFired, func(ctx context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
		return tt.start(ctx, task.RunAt)
	})
	config := scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(300 * time.Millisecond)})
	config.PollInterval = time.Minute
	run(t, db, reg, config)
	tt.punctual(t, 6, func() {})
}

// F51: the backoff counts from the failure, not from the start of the transaction.
func TestTheBackoffCountsFromTheFailure(t *testing.T) {
	needs.CI(t)
	for _, kind := range []string{"TX", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			clock := open(t, db.URL)
			var failed time.Time
			each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
				<-time.After(1500 * time.Millisecond) // slow work
				if err := clock.QueryRowContext(ctx, `SELECT clock_timestamp()`).Scan(&failed); err != nil {
					t.Error(err)
				}
				return errAlways
			}, handlers.Backoff(constant(time.Minute)), handlers.NoJitter())
			db.Enqueue(t, kind, 1)
			once(t, db, reg, relay.Config{})
			db.want(t, true, "the retry is due a minute after the failure", `SELECT run_at - interval '1 minute'
				BETWEEN $1 AND clock_timestamp() FROM outbox.task WHERE attempt = 1`, failed)
		})
	}
}

// What is delayed, failed before, or the first of its ordering key runs at once; the transaction
// here is not one of InTx, which would wake the relay by itself.
func TestRunNowStartsATaskBeforeItsTime(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		const insert = `INSERT INTO outbox.task (task_type, run_at, attempt, attempted_at, last_error, ordering_key)
			VALUES ('TX', now() + interval '1 hour', $1, now(), $2, $3) RETURNING task_id`
		delayed, failed, keyed := db.Int(t, insert, 0, nil, nil), db.Int(t, insert, 1, "x", nil), db.Int(t, insert, 0, nil,
			"k")
		run(t, db, all(), relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
		db.becomes(t, 20*time.Second, "scheduled", "the ordered task is its key's first",
			`SELECT state FROM outbox.task WHERE task_id = $1`, keyed)
		eventually(t, 20*time.Second, "the relay sleeps", func() bool {
			return db.Int(t, `SELECT last_value FROM outbox.wake`) > 0
		})
		for _, id := range []int{delayed, failed, keyed} {
			tx := db.begin(t)
			got, err := outbox.RunNow(t.Context(), tx, int64(id))
			if err != nil || got != outbox.RunNowDue {
				t.Fatalf("task %d: %v, %v", id, got, err)
			}
			must(tx.Commit())
			db.becomes(t, 20*time.Second, 1, "the task is done", `SELECT count(*) FROM effect WHERE task_id = $1`, id)
		}
		db.Emptied(t, 10*time.Second)
	})
}
