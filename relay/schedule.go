package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/schedule"
)

// Schedule enqueues a task at each time that its Timing gives: a firing. With any number of relays
// and any times of their clocks, each firing enqueues one task, whose RunAt is the time of the
// firing: the times are computed from the row in outbox.schedule and from PostgreSQL's clock, and
// the row is locked meanwhile. There is no leader; any relay that has the schedule in its Config
// fires it, also one without a handler for the task's type.
//
// A relay adds its schedules to the table when it starts. If the text of the Timing of one that is
// there has changed, its next firing is computed anew, from now on; else it is kept, so that nothing
// is lost by a restart. Where processes disagree on a schedule, as in a rolling deploy, the last one that
// started decides, and only relays with the same text, CatchUp, task type and payload fire it. When
// none of these lives any more, or the schedule's row is gone, a relay that has the schedule
// registers its own again within 10 s. A schedule that is no longer in any Config stays in the
// table and does not fire; admin.Client.RemoveSchedule removes it.
//
// A next firing that lies further ahead than Timing gives was computed while PostgreSQL's clock was
// ahead. It is set back, so what fired early by that clock may fire again.
//
// Operators store others without a deploy; see [Config].ParseSchedule. One of a Config takes the place of a
// stored one of its Name, with a warning.
type Schedule struct {
	// Name is the schedule's identity: 1 to 128 bytes of printable text, once in a schema.
	Name string

	// Timing says when it fires, and must be set: Every(5 * time.Minute), or Cron(cron.ParseStandard, "0 9 * * *").
	Timing Timing

	// Task is what a firing enqueues, made by TaskType.New. It must have a Type. Its RunAt and Schema are set by the
	// relay. One that is bound to another schema (TaskType.In) is an error of New.
	Task outbox.TaskSpec

	// CatchUp says what becomes of firings that were missed while no relay with the schedule
	// worked. Default outbox.CatchUpOnce.
	CatchUp outbox.CatchUp
}

// prepareSchedules returns them as the scheduler needs them, or all that is wrong.
func prepareSchedules(all []Schedule, schema string) (out []schedule.Schedule, err error) {
	names := map[string]bool{}
	var errs []error
	for i, one := range all {
		bad := func(err error) {
			errs = append(errs, fmt.Errorf("relay: Config.Schedules[%d] %.32q: %w", i, one.Name, err))
		}
		if names[one.Name] {
			bad(errors.New("there are two of this Name"))
		}
		names[one.Name] = true
		spec, err := checkTiming(one.Timing)
		if err != nil {
			bad(fmt.Errorf("Timing: %w", err))
			one.Timing, spec = Every(time.Hour), "none" // the other fields are checked as well
		}
		one.Task.Options = append(slices.Clone(one.Task.Options), outbox.Schema(schema)) // refuses a task of another one
		prepared := schedule.Schedule{Name: one.Name, Timing: one.Timing, Spec: spec, Task: one.Task,
			CatchUp: one.CatchUp}
		for _, wrong := range prepared.Prepare() {
			bad(wrong)
		}
		out = append(out, prepared)
	}
	slices.SortFunc(out, func(a, b schedule.Schedule) int { return strings.Compare(a.Name, b.Name) })
	return out, errors.Join(errs...)
}

// parseStored is how stored schedules get their timing; nil without a parser.
func parseStored(parse func(spec string) Timing) schedule.Parse {
	if parse == nil {
		return nil
	}
	return func(spec, zone string) (timing schedule.Timing, text string, err error) {
		var own Timing
		if err := guard.Call(func() { own = parse(spec) }); err != nil {
			return nil, "", fmt.Errorf("ParseSchedule panicked: %w", err)
		}
		if own == nil {
			return nil, "", fmt.Errorf("ParseSchedule does not understand %.200q", spec)
		}
		if zone != "" && (strings.HasPrefix(spec, "TZ=") || strings.HasPrefix(spec, "CRON_TZ=")) {
			return nil, "", errors.New("its spec has a zone of its own beside the time zone")
		}
		if zone != "" {
			in, err := time.LoadLocation(zone)
			if err != nil {
				return nil, "", err
			}
			own = InZone(in, own)
		}
		text, err = checkTiming(own)
		return own, text, err
	}
}

// Timing says when a schedule fires: [Cron], [Every], [InZone], or a type of the app's own.
type Timing interface {
	// Next is the first firing after t, to the microsecond; the zero time if there is none. It gets
	// PostgreSQL's time, in UTC, and must depend on nothing else: no clock and no state.
	//
	// It is called from several goroutines and must return within 5 s; else the schedule ends,
	// which is logged. It also ends after the zero time, a time after the year 9999, or one that is
	// not after t. It begins again when a relay starts whose Next gives a time. If Next panics or
	// ends its goroutine, the schedule stands as it is, which is logged, and is tried again after a
	// minute.
	Next(t time.Time) time.Time

	// String is the timing as text, which operators see, such as the expression of Cron. When it
	// changes the next firing is computed anew. So a type of the app's own changes it whenever Next
	// changes, for example from "business days" to "business days, 2". It is not empty, and prints.
	String() string
}

// Cron fires by a cron expression that parse understands, such as ParseStandard of
// github.com/robfig/cron/v3:
//
//	relay.Cron(cron.ParseStandard, "0 9 * * *")
//
// parse may be any function whose result has Next as [Timing] has it. An error of parse is an error
// of New. An expression of robfig/cron is in UTC unless it names a zone, as in
// "CRON_TZ=Europe/Berlin 0 9 * * *". With a zone, it does not fire in an hour that a change of
// daylight-saving time skips, and twice in a repeated one; [InZone] fires once in both.
func Cron[T interface{ Next(time.Time) time.Time }](parse func(spec string) (T, error), spec string) Timing {
	c := cronTiming{spec: spec}
	if parse == nil {
		c.err = errors.New("Cron: the parser is nil")
		return c
	}
	timing, err := parse(spec)
	if err != nil {
		c.err = fmt.Errorf("Cron: %.200q: %w", spec, err)
		return c
	}
	c.next = func(t time.Time) time.Time { return timing.Next(t) } // New finds a nil one
	return c
}

type cronTiming struct {
	spec string
	next func(time.Time) time.Time
	err  error // of the parser
}

func (c cronTiming) String() string { return c.spec }
func (c cronTiming) check() error   { return c.err }

func (c cronTiming) Next(t time.Time) time.Time {
	if c.err != nil {
		return time.Time{}
	}
	return c.next(t)
}

// minEvery is the shortest period of Every.
const minEvery = 10 * time.Millisecond

type everyTiming time.Duration

// Every fires at the multiples of d since Monday, January 1 of the year 1, 00:00 UTC: Every(15 *
// time.Minute) at each quarter of an hour, Every(24 * time.Hour) at midnight UTC. It does not
// drift, and restarts do not shift it. d is at least 10 ms and of whole microseconds, else New
// refuses it.
func Every(d time.Duration) Timing { return everyTiming(d) }

func (e everyTiming) String() string { return fmt.Sprint("every ", time.Duration(e)) }

func (e everyTiming) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

func (e everyTiming) check() error {
	if d := time.Duration(e); d < minEvery || d%time.Microsecond != 0 {
		return fmt.Errorf("Every(%v): it must be at least %v, in whole microseconds", d, minEvery)
	}
	return nil
}

// checkTiming returns the text of a timing, or what is wrong with one of this package.
func checkTiming(timing Timing) (text string, err error) {
	if timing == nil {
		return "", errors.New("it is nil")
	}
	if own, ok := timing.(interface{ check() error }); ok {
		if err := own.check(); err != nil {
			return "", err
		}
	}
	if err := guard.Call(func() { text = timing.String() }); err != nil {
		return "", fmt.Errorf("its String panicked: %w", err)
	}
	return text, nil
}

// InZone takes timing as times of day in a zone, and fires at each of them once, also when the
// zone's clocks change. timing is, for example, a Cron without a zone: it gets and returns times of
// day as if they were UTC.
//
// When clocks go back, a time that comes twice fires the first time. When they go forward, a
// skipped time fires as the skipped hour ends. So an hourly timing has a gap of two hours when
// clocks go back: use UTC for intervals.
func InZone(zone *time.Location, timing Timing) Timing { return zoneTiming{zone, timing} }

type zoneTiming struct {
	zone   *time.Location
	timing Timing
}

func (z zoneTiming) String() string { return fmt.Sprintf("%v in %v", z.timing, z.zone) }

func (z zoneTiming) check() error {
	if z.zone == nil {
		return errors.New("InZone: the zone is nil")
	}
	if z.timing == nil {
		return errors.New("InZone: the timing is nil")
	}
	_, err := checkTiming(z.timing)
	return err
}

func (z zoneTiming) Next(t time.Time) time.Time {
	for wall := wallClock(t.In(z.zone)); ; {
		next := z.timing.Next(wall)
		switch {
		case next.IsZero():
			return next
		case !next.After(wall):
			return t // no advance, which ends the schedule
		}
		wall = next.UTC()
		if at := z.first(wall); at.After(t) {
			return at
		}
	}
}

// wallClock is what the clocks say at t, as if it were UTC.
func wallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// first is the first moment at which the zone's clocks show at least the given time.
func (z zoneTiming) first(wall time.Time) time.Time {
	year, month, day := wall.Date()
	t := time.Date(year, month, day, wall.Hour(), wall.Minute(), wall.Second(), wall.Nanosecond(), z.zone)
	begin, end := t.ZoneBounds()
	switch shown := wallClock(t); {
	case shown.After(wall): // the time is skipped
		return begin
	case shown.Before(wall):
		return end
	case begin.IsZero():
		return t
	}
	_, before := begin.Add(-1).Zone()
	if earlier := wall.Add(-time.Duration(before) * time.Second); earlier.Before(begin) {
		return earlier
	}
	return t
}
