package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/admin"
)

const nowSQL = `/* outbox: clock */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// checkTasks looks at relays and types together, in one snapshot.
func checkTasks(ctx context.Context, v *visit) error {
	relays, err := v.relays(ctx)
	if err != nil {
		return err
	}
	types, err := v.admin.Types(ctx)
	if err != nil {
		return err
	}
	var us int64
	if err := v.row(ctx, nowSQL, nil, &us); err != nil {
		return err
	}
	now := time.UnixMicro(us)
	var todo, ready int64
	for _, t := range types {
		todo += t.Ready + t.Scheduled + t.Leased + t.Waiting
		ready += t.Ready
		if overdue(t, now) > v.settings.starving {
			ready++ // it would be, if a relay promoted it
		}
		v.checkType(t, relays, now)
	}
	alive := slices.ContainsFunc(relays, func(w worker) bool { return w.alive })
	var others []string
	if todo > 0 && !alive {
		if others, err = v.elsewhere(ctx); err != nil {
			return err
		}
	}
	v.checkRelays(relays, others, todo, ready)
	if todo > 0 && !alive {
		const what, do = "no relay is alive, so no task of any type is run", "see relays"
		v.add("starving-type", SeverityInfo, "", what, do)
		if !slices.ContainsFunc(v.found, func(f Finding) bool { return f.Check == "unhandled-type" }) { // all are leased
			v.add("unhandled-type", SeverityInfo, "", what, do)
		}
	}
	return nil
}

// overdue is the time since the next scheduled task of a type was due; negative before it.
func overdue(t admin.Type, now time.Time) time.Duration {
	if t.NextRunAt.IsZero() {
		return 0
	}
	return now.Sub(t.NextRunAt)
}

// checkType reports a type whose tasks no relay runs, or not in time.
func (v *visit) checkType(t admin.Type, relays []worker, now time.Time) {
	if t.Ready+t.Scheduled+t.Waiting == 0 {
		return
	}
	if t.Paused {
		v.checkPaused(t)
	}
	late := overdue(t, now)
	switch {
	case t.Relays == 0:
		v.unhandled(t, relays, t.Ready > 0 || late > 0)
	case t.Paused:
	case t.Ready > 0 && t.OldestReady > v.settings.starving:
		v.starves(t, relays)
	case late > v.settings.starving:
		v.add("starving-type", SeverityWarning, t.Type,
			fmt.Sprintf("a scheduled task of the type %s has been due for %s, and %s have a handler for it",
				t.Type, said(late), plural(t.Relays, "living relay")),
			"look into the relays' logs: they make tasks ready when they poll")
	}
}

func (v *visit) unhandled(t admin.Type, relays []worker, due bool) {
	severity := SeverityInfo
	if due {
		severity = SeverityWarning
	}
	died, do := "", "register a handler for it in the relays, or start those that have it"
	if len(relays) > 0 && relays[0].alive {
		do += "; if the app has no use for its tasks, a handler that returns handlers.Dead makes them dead letters"
	}
	for _, w := range relays { // the last one first
		if !w.alive && w.handles(t.Type) {
			died = fmt.Sprintf("; of those that died the last one with a handler was %v, silent for %s; "+
				"those that ended in order are not on record", w, said(w.silent))
			break
		}
	}
	v.add("unhandled-type", severity, t.Type,
		fmt.Sprintf("no living relay has a handler for the type %s: %s, which counts as no attempt%s",
			t.Type, tasksWait(t), died), do)
}

func (v *visit) starves(t admin.Type, relays []worker) {
	var workers, busy int64
	known := true
	for _, w := range relays {
		if w.alive && w.handles(t.Type) {
			workers, busy, known = workers+w.workers, busy+w.leased+w.runs, known && w.workers > 0
		}
	}
	severity, why := SeverityWarning, ""
	do := "look into the relays' logs; a low handlers.Priority, or relay.Config.WorkersByType, keeps a type back"
	switch {
	case t.MaxRunning > 0 || t.Rate > 0:
		severity, why = SeverityInfo, "; the type has a limit of runs or a rate (outbox types), which may be why"
		do = "raise handlers.MaxRunning or handlers.Rate, if it is"
	case known && busy >= workers:
		why = fmt.Sprintf("; all %s are busy", plural(workers, "worker"))
		do = "more relay.Config.Workers or more relays, if the database has room for them; or faster handlers"
	case known:
		why = fmt.Sprintf("; %d of %s are busy", busy, plural(workers, "worker"))
	}
	v.add("starving-type", severity, t.Type,
		fmt.Sprintf("a ready task of the type %s has been due for %s, %s, and %s a handler for it%s",
			t.Type, said(t.OldestReady), isReady(t.Ready), plural(t.Relays, "living relay has", "living relays have"),
			why), do)
}

const forgottenPause = time.Hour

func (v *visit) checkPaused(t admin.Type) {
	severity, since := SeverityInfo, ""
	if t.Ready > 0 {
		since = ", the next one for " + said(t.OldestReady)
		if t.OldestReady > forgottenPause {
			severity = SeverityWarning
		}
	}
	v.add("paused-type", severity, t.Type, fmt.Sprintf("the type %s is paused, and %s%s", t.Type, tasksWait(t), since),
		"when it may go on: admin.Client.ResumeType, or outbox resume TYPE")
}

func tasksWait(t admin.Type) string {
	return plural(t.Ready+t.Scheduled+t.Waiting, "task waits", "tasks wait")
}
