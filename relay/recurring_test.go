package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// nextFunc is a Timing.
type nextFunc func(time.Time) time.Time

func (f nextFunc) Next(t time.Time) time.Time { return f(t) }

// scheduled is a Config with the schedules, which enqueue tasks of the type FIRED unless they say otherwise.
func scheduled(schedules ...relay.Schedule) relay.Config {
	for i := range schedules {
		if _, ok := schedules[i].Timing.(nextFunc); ok && schedules[i].Spec == "" {
			schedules[i].Spec = "of a test"
		}
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
		AND NOT run_at BETWEEN now() - interval '3 h 1 min' AND now() - interval '3 h'`)
	if behind := time.Since(time.UnixMicro(asked.Load())); behind < 179*time.Minute || behind > 182*time.Minute {
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
