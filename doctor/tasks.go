package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/admin"
)

const forgotten = time.Hour // a pause

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
	if err := v.row(ctx, clockSQL, nil, &us); err != nil {
		return err
	}
	now := time.UnixMicro(us)
	alive := false
	for _, w := range relays {
		alive = alive || w.alive
	}
	var todo, ready int64
	for _, t := range types {
		todo += t.Ready + t.Scheduled + t.Leased + t.Waiting
		ready += t.Ready
		if !t.NextRunAt.IsZero() && now.Sub(t.NextRunAt) > v.starving {
			ready++ // it would be, if a relay promoted it
		}
		v.checkType(t, relays, now)
	}
	v.checkRelays(relays, todo, ready)
	if !alive && todo > 0 {
		const what, do = "no relay is alive, so no task of any type is run", "see relays"
		v.add("starving-type", Info, "", what, do)
		if !slices.ContainsFunc(v.found, func(f Finding) bool { return f.Check == "unhandled-type" }) { // all are leased
			v.add("unhandled-type", Info, "", what, do)
		}
	}
	return v.checkPools(ctx, relays)
}

// checkType reports a type whose tasks nobody runs, or not in time.
func (v *visit) checkType(t admin.Type, relays []worker, now time.Time) {
	waiting := t.Ready + t.Scheduled + t.Waiting
	if waiting == 0 {
		return
	}
	if t.Paused {
		v.checkPaused(t)
	}
	var workers, busy int64
	known := true
	for _, w := range relays {
		if w.alive && w.handles(t.Type) {
			workers, busy, known = workers+w.workers, busy+w.leased+w.runs, known && w.workers > 0
		}
	}
	overdue := time.Duration(0)
	if !t.NextRunAt.IsZero() {
		overdue = now.Sub(t.NextRunAt)
	}
	switch {
	case t.Relays == 0:
		severity := Warning
		if t.Ready == 0 && overdue <= 0 {
			severity = Info
		}
		died, do := "", "register a handler for it in the relays, or start those that have it"
		if len(relays) > 0 && relays[0].alive {
			do += "; if nobody enqueues the type any more and its tasks may go: DELETE FROM " + v.name("task") + " WHERE task_type = …"
		}
		for _, w := range relays { // the last one first
			if !w.alive && w.handles(t.Type) {
				died = fmt.Sprintf("; of those that died the last one with a handler was %v, silent for %s; those that ended in order are not on record", w, w.silent)
				break
			}
		}
		v.add("unhandled-type", severity, t.Type, fmt.Sprintf("no living relay has a handler for the type %s: %s, which counts as no attempt%s", t.Type, tasksWait(waiting), died), do)
	case t.Paused:
	case t.Ready > 0 && t.OldestReady > v.starving:
		v.starves(t, workers, busy, known)
	case overdue > v.starving:
		v.add("starving-type", Warning, t.Type,
			fmt.Sprintf("a scheduled task of the type %s has been due for %s, and %s have a handler for it", t.Type, said(overdue), plural(t.Relays, "living relay")),
			"look into the relays' logs: they make tasks ready when they poll")
	}
}

func (v *visit) starves(t admin.Type, workers, busy int64, known bool) {
	severity, why, do := Warning, "", "look into the relays' logs; a type that is chosen seldom has a low handlers.Priority, or a relay.Chooser of the app's keeps it back"
	switch {
	case t.MaxRunning > 0 || t.Rate > 0:
		severity, why = Info, "; the type has a limit of runs or a rate (outbox types), which may be why"
		do = "raise handlers.MaxRunningTotal or handlers.Rate, if it is"
	case known && busy >= workers:
		why = fmt.Sprintf("; all %s are busy", plural(workers, "worker"))
		do = "more relay.Config.Workers or more relays, if the database has room for them; or faster handlers"
	case known:
		why = fmt.Sprintf("; %d of %s are busy", busy, plural(workers, "worker"))
	}
	v.add("starving-type", severity, t.Type, fmt.Sprintf("a ready task of the type %s has been due for %s, %s, and %s a handler for it%s",
		t.Type, said(t.OldestReady), isReady(t.Ready), plural(t.Relays, "living relay has", "living relays have"), why), do)
}

func tasksWait(n int64) string { return plural(n, "task waits", "tasks wait") }

func (v *visit) checkPaused(t admin.Type) {
	waiting := t.Ready + t.Scheduled + t.Waiting
	severity, since := Info, ""
	if t.Ready > 0 {
		since = ", the next one for " + said(t.OldestReady)
		if t.OldestReady > forgotten {
			severity = Warning
		}
	}
	v.add("paused-type", severity, t.Type, fmt.Sprintf("the type %s is paused, and %s%s", t.Type, tasksWait(waiting), since),
		"when it may go on: admin.Client.ResumeType, or outbox resume TYPE")
}
