package relay_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
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
