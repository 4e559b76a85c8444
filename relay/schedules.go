package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/schedule"
)

// Schedule enqueues a task at each time that its Timing gives: a firing. With any number of relays
// and any times of their clocks, each firing enqueues one task, whose RunAt is the time of the
// firing: the times are computed from the row in outbox.schedule and from PostgreSQL's clock, and
// the row is locked meanwhile. There is no leader; any relay that has the schedule in its Config
// fires it, also one without a handler for the task's type.
//
// A relay adds its schedules to the table when it starts. If the Spec of one that is there has
// changed, its next firing is computed anew, from now on; else it is kept, so that nothing is lost
// by a restart. Where processes disagree on a schedule, as in a rolling deploy, the last one that
// started decides, and only relays with the same Spec, CatchUp, task type and payload fire it. When
// none of these lives any more, or the schedule's row is gone, a relay that has the schedule
// registers its own again within 10 s. A schedule that is no longer in any Config stays in the
// table and does not fire; admin.Client.RemoveSchedule removes it.
//
// A next firing that lies further ahead than Timing gives was computed while PostgreSQL's clock was
// ahead. It is set back, so what fired early by that clock may fire again.
type Schedule struct {
	// Name is the schedule's identity: at most 128 bytes of printable text, once in a schema.
	Name string

	// Timing says when it fires.
	Timing Timing

	// Spec is the timing as text: the cron expression, or a version such as "2". Operators see it.
	// Change it whenever Timing changes: the next firing is computed anew when Spec changes. If it
	// is empty, it is "every 24h0m0s" for Every(24*time.Hour); any other Timing needs one.
	Spec string

	// Task is what a firing enqueues, made by TaskType.New. Its RunAt and Schema are set by the
	// relay.
	Task outbox.TaskSpec

	// CatchUp says what becomes of firings that were missed while no relay with the schedule
	// worked. Default CatchUpOnce.
	CatchUp CatchUp
}

// Timing says when a schedule fires. The schedules of robfig/cron have it.
type Timing interface {
	// Next is the first firing after t, to the microsecond; the zero time if there is none. It gets
	// PostgreSQL's time, in UTC, and must depend on nothing else: no clock and no state. So an
	// expression of robfig/cron is in UTC unless it names a zone: "CRON_TZ=Europe/Berlin 0 9 * *
	// *". What happens to firings in the hours that a change of daylight-saving time skips or
	// repeats is Next's to say: robfig/cron does not fire in a skipped hour, and twice in a
	// repeated one. [InZone] fires once in both.
	//
	// It is called from several goroutines and must return within 5 s; else the schedule ends,
	// which is logged. It also ends after the zero time, a time after the year 9999, or one that is
	// not after t. It begins again when a relay starts whose Next gives a time. If Next panics or
	// ends its goroutine, the schedule stands as it is, which is logged, and is tried again after a
	// minute.
	Next(t time.Time) time.Time
}

// CatchUp is what becomes of missed firings.
type CatchUp int

const (
	// CatchUpOnce enqueues one task, for the first of the missed firings. Two firings that a relay
	// is too late for are missed as well, so very frequent schedules lose some under load.
	CatchUpOnce CatchUp = iota
	// CatchUpAll enqueues a task for each of them.
	CatchUpAll
)

// minEvery is the shortest period of Every.
const minEvery = 10 * time.Millisecond

type everyTiming time.Duration

// Every fires at the multiples of d since Monday, January 1 of the year 1, 00:00 UTC: Every(15 *
// time.Minute) at each quarter of an hour, Every(24 * time.Hour) at midnight UTC. It does not
// drift, and restarts do not shift it. d is at least 10 ms and of whole microseconds, else New
// refuses it.
func Every(d time.Duration) Timing { return everyTiming(d) }

func (e everyTiming) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

// prepareSchedules returns them as the scheduler needs them, or all that is wrong.
func prepareSchedules(all []Schedule) (out []schedule.Schedule, err error) {
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
		if one.CatchUp != CatchUpOnce && one.CatchUp != CatchUpAll {
			bad(fmt.Errorf("the CatchUp %d must be CatchUpOnce or CatchUpAll", one.CatchUp))
		}
		if e, ok := one.Timing.(everyTiming); ok {
			if d := time.Duration(e); d < minEvery || d%time.Microsecond != 0 {
				bad(fmt.Errorf("the Timing Every(%v) must be at least %v, in whole microseconds", d, minEvery))
			}
			if one.Spec == "" {
				one.Spec = fmt.Sprint("every ", time.Duration(e))
			}
		}
		prepared := schedule.Schedule{Name: one.Name, Timing: one.Timing, Spec: one.Spec, Task: one.Task,
			CatchUp: one.CatchUp == CatchUpAll}
		for _, wrong := range prepared.Prepare() {
			bad(wrong)
		}
		out = append(out, prepared)
	}
	slices.SortFunc(out, func(a, b schedule.Schedule) int { return strings.Compare(a.Name, b.Name) })
	return out, errors.Join(errs...)
}
