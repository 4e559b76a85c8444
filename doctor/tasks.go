package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

// taskChecks are of relays, and of the tasks, schedules and dead letters that they work on.
var taskChecks = []check{
	{name: "relays", fine: "relays are alive, and the dead ones hold nothing", look: checkTasks, also: []passed{
		{"unhandled-type", "there is a relay for each type with tasks"},
		{"paused-type", "no type with tasks is paused"},
		{"starving-type", "no type waits for longer than it should"},
		{"failing-type", "of no type more runs fail than tasks finish"}}},
	{name: "task", fine: "no task was asked about", look: checkTask, ofVersion: true},
	{name: "maintenance", fine: "the relays do it in time", query: maintenanceSQL},
	{name: "schedules", fine: "they fire in time, and living relays have them", query: schedulesSQL},
	{name: "future-times", fine: "no stored time lies further ahead than it can", query: futureTimesSQL},
	{name: "dead-letters", fine: "there are none", query: deadLettersSQL,
		args: func(settings) []any { return []any{asJSON(taskview.Reasons)} }},
}

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
		todo += t.Ready + t.Scheduled + t.Retrying + t.Leased + t.Waiting
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

// checkTask says why a task waits, if it was asked about.
func checkTask(ctx context.Context, v *visit) error {
	id := v.settings.task
	if id == 0 {
		return nil
	}
	why, err := v.admin.Why(ctx, id)
	for _, c := range why.Causes {
		severity := SeverityInfo
		if slices.Contains([]admin.CauseKind{admin.CauseNoRelay, admin.CauseNoHandler,
			admin.CauseCopy, admin.CauseEnvironment, admin.CauseRowSecurity, admin.CauseUnreadable,
			admin.CauseSuspect, admin.CauseDead, admin.CauseGone}, c.Kind) {
			severity = SeverityWarning
		}
		v.add("task", severity, fmt.Sprintf("task %d", id), taskview.Cause(c, func(t time.Time) string {
			return t.UTC().Format(time.DateTime) + " UTC"
		}), c.Remedy)
	}
	return err
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
	if t.Failing != nil {
		pause := "; outbox pause TYPE, or admin.Client.PauseType, saves the attempts of its tasks until then"
		if t.Paused {
			pause = ""
		}
		v.add("failing-type", SeverityWarning, t.Type,
			fmt.Sprintf("of the type %s more runs fail than tasks finish: %s", t.Type, taskview.Failing(t.Failing)),
			"look at the last errors (outbox tasks list -type TYPE -state retrying, outbox dead list -type TYPE; "+
				"admin.Type.Failing has one), and mend the cause"+pause)
	}
	if t.Ready+t.Scheduled+t.Retrying+t.Waiting == 0 {
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
	return plural(t.Ready+t.Scheduled+t.Retrying+t.Waiting, "task waits", "tasks wait")
}

// worker is a relay's process. Zero workers: unknown.
type worker struct {
	id, host              string
	pid                   int
	alive, old            bool
	silent                time.Duration // since alive_until
	workers, leased, runs int64
	types                 string // in lines: a name has no control character
}

// handles reports whether the relay has a handler for a type.
func (w worker) handles(taskType string) bool {
	return slices.Contains(strings.Split(w.types, "\n"), taskType)
}

func (w worker) String() string { return fmt.Sprintf("%s (pid %d on %s)", w.id, w.pid, w.host) }

// Leases are counted by their index, up to a limit.
const relaysSQL = `/* outbox: relays */
WITH journal AS (
  SELECT relay_id, count(*) AS runs FROM (SELECT relay_id FROM outbox.running LIMIT 10000) AS part GROUP BY relay_id)
SELECT l.relay_id::text, l.host, l.pid, l.alive_until > clock_timestamp(),
       l.started_at < (SELECT max(applied_at) FROM outbox.migration),
       (extract(epoch FROM clock_timestamp() - l.alive_until) * 1000000)::bigint, array_to_string(l.task_types, E'\n'),
       COALESCE(l.workers, 0),
       (SELECT count(*) FROM (SELECT 1 FROM outbox.task t
                               WHERE t.state = 'leased' AND t.relay_id = l.relay_id LIMIT 10000) AS held),
       COALESCE(j.runs, 0)
  FROM outbox.relay l LEFT JOIN journal j ON j.relay_id = l.relay_id
 ORDER BY l.alive_until DESC, l.relay_id LIMIT 1000`

func (v *visit) relays(ctx context.Context) (out []worker, err error) {
	var w worker
	var silent int64 // µs
	into := []any{&w.id, &w.host, &w.pid, &w.alive, &w.old, &silent, &w.types, &w.workers, &w.leased, &w.runs}
	err = v.each(ctx, relaysSQL, nil, into, func() {
		w.silent = time.Duration(silent) * time.Microsecond
		out = append(out, w)
	})
	return out, err
}

const lateTakeover = 30 * time.Second // takeovers begin 10 s after the end of a lease

// checkRelays reports a lack of relays, old relays, and leases of dead relays.
func (v *visit) checkRelays(relays []worker, elsewhere []string, todo, ready int64) {
	alive, old := 0, 0
	for _, w := range relays {
		switch {
		case w.alive:
			alive++
			if w.old {
				old++
			}
		case w.leased > 0 && w.silent > lateTakeover:
			v.add("relays", SeverityWarning, w.id,
				fmt.Sprintf("the relay %v has been dead for %s and still holds %s, which another should have "+
					"taken over",
					w, said(w.silent), plural(w.leased, "leased task")),
				"look into the log of the living relays; at once: admin.Client.HandBack, or outbox relays "+
					"hand-back "+w.id)
		}
	}
	do := "start a process that calls Relay.Run, and its log says why it ends"
	others := ""
	if len(elsewhere) > 0 {
		others = "; alive are " + strings.Join(elsewhere, ", ")
		do = "if they are to run its tasks, correct relay.Config.Schema, or the schema of the app's Enqueue; else " + do
	}
	switch {
	case alive == 0 && ready > 0:
		last := ""
		if len(relays) > 0 {
			last = fmt.Sprintf("; the last one that died was %v, silent for %s", relays[0], said(relays[0].silent))
		}
		v.add("relays", SeverityCritical, "", fmt.Sprintf("no relay is alive, and %s%s%s", isReady(ready), last, others), do)
	case alive == 0 && todo > 0:
		v.add("relays", SeverityWarning, "", fmt.Sprintf("no relay is alive, and %s to come%s", plural(todo, "task"), others), do)
	case alive == 0:
		v.add("relays", SeverityInfo, "", "no relay is alive; there is nothing to do", "")
	case old > 0:
		v.add("relays", SeverityInfo, "",
			fmt.Sprintf("%d of %s began before the newest migration was applied: they may be of an older version",
				old, plural(alive, "living relay")), "end the deploy, if it is not over yet")
	}
	if alive > 0 {
		v.add("relays", SeverityOK, "", plural(alive, "relay")+" alive", "")
	}
}

const (
	// The schemas whose relays this role may read.
	schemasSQL = `/* outbox: other schemas with relays */
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'alive_until'
 WHERE c.relname = 'relay' AND c.relkind = 'r' AND n.nspname <> $1
   AND EXISTS (SELECT FROM pg_class o WHERE o.relnamespace = n.oid AND o.relname = 'headless_key')
   AND has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(c.oid, a.attnum, 'SELECT')
 ORDER BY n.nspname LIMIT 1000`
	livingSQL = `/* outbox: living relays of another schema */
SELECT count(*) FROM %s.relay WHERE alive_until > clock_timestamp()`
)

// elsewhere names up to three other schemas with living relays.
func (v *visit) elsewhere(ctx context.Context) (out []string, err error) {
	var name string
	var names []string
	err = v.each(ctx, schemasSQL, []any{v.schema}, []any{&name}, func() { names = append(names, name) })
	for _, name := range names {
		var n int64
		if err == nil && len(out) < 3 {
			err = v.tx.QueryRowContext(ctx, fmt.Sprintf(livingSQL, quote(name))).Scan(&n)
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%s in the schema %q", plural(n, "relay"), name))
		}
	}
	return out, err
}

func isReady(n int64) string { return plural(n, "task is ready", "tasks are ready") }

// The fold is due only while the counter log has rows. Dead letters are purged only by relays with a
// DeadRetention.
const maintenanceSQL = `/* outbox: maintenance that is late */
SELECT 'warning', m.job, format('the job %s has been due for %s, though relays are alive',
       m.job, date_trunc('second', clock_timestamp() - m.due_at)),
       'look into the relays'' logs at the level Debug; mostly another transaction holds a lock on a table, ' ||
       'see lock-wait'
  FROM outbox.maintenance m
 WHERE m.job <> 'purge dead letters' AND (m.job <> 'fold' OR EXISTS (SELECT 1 FROM outbox.counter_log))
   AND m.due_at < clock_timestamp() - interval '10 minutes'
   AND EXISTS (SELECT 1 FROM outbox.relay l WHERE l.alive_until > clock_timestamp()) ORDER BY m.job`

const schedulesSQL = `/* outbox: schedules that do not fire, that no living relay has, or that are missing */
WITH unowned AS (SELECT name, missing FROM outbox.unowned_schedule ORDER BY name LIMIT 1000),
stored AS (
  SELECT name, wrong, paused FROM outbox.schedule WHERE stored ORDER BY name LIMIT 1000),
idle AS (
  SELECT name, next_at FROM outbox.schedule
   WHERE NOT paused AND wrong IS NULL AND (next_at IS NULL AND (NOT stored OR last_at IS NOT NULL)
      OR next_at < clock_timestamp() - interval '1 minute') LIMIT 1000),
found (severity, name, what, remedy) AS (
  SELECT 'warning', name, 'the schedule %s is missing, though a living relay has it',
         'look again in 10 s, until the relay registers it again; else look into its log'
    FROM unowned WHERE missing
  UNION ALL
  SELECT 'warning', name, 'no living relay has the schedule %s as it was registered last',
         'look again in 10 s, until a relay that has it takes it back; else start one ' ||
         'whose relay.Config.Schedules has it; %s'
    FROM unowned WHERE NOT missing
  UNION ALL
  SELECT 'warning', name, 'no living relay fires the stored schedule %s',
         'start a relay with a relay.Config.ParseSchedule; %s'
    FROM stored WHERE NOT paused AND NOT EXISTS (
         SELECT 1 FROM outbox.relay r WHERE r.alive_until > clock_timestamp() AND r.parses)
  UNION ALL
  SELECT 'warning', name, 'relays cannot fire the stored schedule %s: ' || replace(wrong, '%', '%%'),
         'admin.Client.PutSchedule, or outbox schedules put NAME, with another spec; %s'
    FROM stored WHERE wrong IS NOT NULL AND NOT paused
  UNION ALL
  SELECT 'info', name, 'the schedule %s has no next firing: it has ended, or its Next misbehaved, ' ||
         'which a relay has logged',
         '%s' FROM idle WHERE next_at IS NULL
  UNION ALL
  SELECT 'warning', name, 'the schedule %s should have fired ' ||
         date_trunc('second', clock_timestamp() - next_at) || ' ago',
         'start a relay whose relay.Config.Schedules has it as it was registered last, or of a stored one ' ||
         'one with a relay.Config.ParseSchedule; %s'
    FROM idle WHERE next_at IS NOT NULL AND name NOT IN (SELECT name FROM unowned))
SELECT severity, name, format(what, name),
       format(remedy, 'if it is not needed: admin.Client.RemoveSchedule, or outbox schedules remove NAME')
  FROM found ORDER BY name`

// The app may choose any run_at, so a task counts only after an attempt in the future.
const futureTimesSQL = `/* outbox: times that lie too far ahead */
WITH ahead (name, n) AS (
  SELECT 'relay', count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '5 minutes'
  UNION ALL
  SELECT 'maintenance', count(*) FROM outbox.maintenance WHERE due_at > clock_timestamp() + interval '1 hour'
  UNION ALL
  SELECT 'task', count(*) FROM (SELECT attempted_at FROM outbox.task WHERE state = 'scheduled' LIMIT 10000) AS t
   WHERE attempted_at > clock_timestamp() + interval '1 minute')
SELECT 'warning', name, format('times further ahead than they can be are in %s rows of the table %s: they were ' ||
       'written while the server''s clock was ahead', n, name),
       'keep the server''s clock by NTP; ' || CASE name
         WHEN 'task' THEN 'the tasks wait by that clock: let them run with the function RunNow, ' ||
                          'or the command outbox tasks run-now'
         ELSE 'relays correct these rows within a minute' END
  FROM ahead WHERE n > 0`

const deadLettersSQL = `/* outbox: dead letters */
WITH recent AS (
  SELECT task_type, reason, count(*) AS letters, max(died_at) AS latest, sum(count(*)) OVER () >= 10000 AS more
    FROM (SELECT task_type, reason, died_at FROM outbox.dead_task WHERE died_at > now() - interval '1 hour'
           ORDER BY died_at DESC, task_id DESC LIMIT 10000) AS d
   GROUP BY task_type, reason),
total AS (
  SELECT COALESCE(sum(tasks), 0)::bigint AS letters
    FROM (SELECT tasks, kind FROM outbox.counter UNION ALL SELECT tasks, kind FROM outbox.counter_log) AS c
   WHERE kind = 'dead')
SELECT 'warning', task_type, format('dead letters of the type %s within the last hour: %s%s, the latest %s ago: %s',
         task_type, letters, CASE WHEN more THEN ' or more' ELSE '' END,
         date_trunc('second', clock_timestamp() - latest),
         COALESCE($1::jsonb ->> reason, reason)),
       'their last errors say why (admin.Client.Tasks, outbox dead list -type TYPE); ' ||
       'mend the cause, then admin.Client.Redrive or outbox dead redrive'
  FROM recent
 UNION ALL
SELECT CASE WHEN letters >= 100000 THEN 'warning' ELSE 'info' END, '', format('dead letters in all: %s', letters),
       'look at them, and redrive those that are to run (package admin, outbox dead); the others may be purged, ' ||
       'by relay.Config.DeadRetention too'
  FROM total WHERE letters > 0
 ORDER BY 2, 3`
