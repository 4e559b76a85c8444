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
type Schedule struct {
	// Name is the schedule's identity: at most 128 bytes of printable text, once in a schema.
	Name string

	// Timing says when it fires: Every(5 * time.Minute), or Cron(cron.ParseStandard, "0 9 * * *").
	Timing Timing

	// Task is what a firing enqueues, made by TaskType.New. Its RunAt and Schema are set by the
	// relay.
	Task outbox.TaskSpec

	// CatchUp says what becomes of firings that were missed while no relay with the schedule
	// worked. Default outbox.CatchUpOnce.
	CatchUp outbox.CatchUp
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
		spec, err := checkTiming(one.Timing)
		if err != nil {
			bad(fmt.Errorf("Timing: %w", err))
			one.Timing, spec = Every(time.Hour), "none" // the other fields are checked as well
		}
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
