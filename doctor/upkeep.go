package doctor

import (
	"context"
	"fmt"
	"time"
)

const lateMaintenance = 10 * time.Minute

// The fold is due only while there is something to fold, and dead letters are purged only by relays
// that were told to.
const maintenanceSQL = `/* outbox: maintenance that is late */
SELECT m.job, (extract(epoch FROM clock_timestamp() - m.due_at) * 1000000)::bigint
  FROM outbox.maintenance m
 WHERE m.job <> 'purge dead letters' AND (m.job <> 'fold' OR EXISTS (SELECT 1 FROM outbox.counter_log))
   AND EXISTS (SELECT 1 FROM outbox.relay l WHERE l.alive_until > clock_timestamp()) ORDER BY m.job`

func checkMaintenance(ctx context.Context, v *visit) error {
	var job string
	var late span
	return v.each(ctx, maintenanceSQL, nil, []any{&job, &late}, func() {
		if late.Duration > lateMaintenance {
			v.add("maintenance", Warning, job, fmt.Sprintf("the job %s has been due for %s, though relays are alive", job, late),
				"look into the relays' logs at the level Debug; mostly another transaction has a table locked, see lock-wait")
		}
	})
}

const lateSchedule = time.Minute

const unownedSchedulesSQL = `/* outbox: schedules that no living relay has, or that are missing */
SELECT name, missing FROM outbox.unowned_schedule ORDER BY name LIMIT 1000`

const schedulesSQL = `/* outbox: schedules that do not fire */
SELECT name, next_at IS NULL, (extract(epoch FROM clock_timestamp() - next_at) * 1000000)::bigint
  FROM outbox.schedule WHERE NOT paused AND (next_at IS NULL OR next_at < clock_timestamp()) ORDER BY next_at, name LIMIT 1000`

func checkSchedules(ctx context.Context, v *visit) error {
	const remove = "if it is not needed: admin.Client.RemoveSchedule, or outbox schedules remove NAME"
	var name string
	var ended, missing bool
	var late span
	found := map[string]bool{}
	err := v.each(ctx, unownedSchedulesSQL, nil, []any{&name, &missing}, func() {
		found[name] = true
		if missing {
			v.add("schedules", Warning, name, "the schedule "+name+" is missing, though a living relay has it",
				"look again in 10 s, by when the relay registers it again; else look into its log")
			return
		}
		v.add("schedules", Warning, name, "no living relay has the schedule "+name+" as it was registered last",
			"look again in 10 s, by when a relay that has it takes it back; else start one whose relay.Config.Schedules has it; "+remove)
	})
	if err != nil {
		return err
	}
	return v.each(ctx, schedulesSQL, nil, []any{&name, &ended, &late}, func() {
		switch {
		case ended:
			v.add("schedules", Info, name,
				"the schedule "+name+" has no next firing: it has ended, or its Next misbehaved, which a relay has logged", remove)
		case late.Duration > lateSchedule && !found[name]:
			v.add("schedules", Warning, name, fmt.Sprintf("the schedule %s should have fired %s ago", name, late),
				"start a relay whose relay.Config.Schedules has it as it was registered last; "+remove)
		}
	})
}

// What was written while the server's clock was ahead. A task's run_at may be the app's wish, so it
// counts only after an attempt in the future.
const futureTimesSQL = `/* outbox: times that lie too far ahead */
SELECT 'relay', count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '5 minutes'
UNION ALL
SELECT 'maintenance', count(*) FROM outbox.maintenance WHERE due_at > clock_timestamp() + interval '1 hour'
UNION ALL
SELECT 'task', count(*) FROM (SELECT attempted_at FROM outbox.task WHERE state = 'scheduled' LIMIT 10000) AS t
 WHERE attempted_at > clock_timestamp() + interval '1 minute'`

func checkFutureTimes(ctx context.Context, v *visit) error {
	var table string
	var n int64
	return v.each(ctx, futureTimesSQL, nil, []any{&table, &n}, func() {
		do := "keep the server's clock by NTP; relays correct these rows within a minute"
		if table == "task" {
			do = "keep the server's clock by NTP; the tasks wait by that clock: let them run with outbox.RunNow, or outbox tasks run-now"
		}
		if n > 0 {
			v.add("future-times", Warning, table, plural(n, "row")+" of the table "+table+" have times that lie too far ahead, as if the server's clock had been", do)
		}
	})
}

const manyDead = 100_000 // that are kept

const deadLettersSQL = `/* outbox: recent dead letters */
SELECT task_type, reason, count(*), (extract(epoch FROM clock_timestamp() - max(died_at)) * 1000000)::bigint, sum(count(*)) OVER () >= 10000
  FROM (SELECT task_type, reason, died_at FROM outbox.dead_task WHERE died_at > now() - interval '1 hour' ORDER BY died_at DESC, task_id DESC LIMIT 10000) AS recent
 GROUP BY task_type, reason ORDER BY 3 DESC, 1, 2`

const deadTotalSQL = `/* outbox: dead letters in all */
SELECT COALESCE(sum(tasks), 0)::bigint FROM (SELECT tasks, kind FROM outbox.counter UNION ALL SELECT tasks, kind FROM outbox.counter_log) AS c WHERE kind = 'dead'`

const lookAtErrors = "their last errors say why (admin.Client.DeadLetters, outbox dead list -type TYPE); mend the cause, then admin.Client.Redrive or outbox dead redrive"

// reasons say what became of tasks, and what to look for.
var reasons = map[string][2]string{
	"attempts": {"used up their attempts", lookAtErrors},
	"handler":  {"died, given up by their handler,", lookAtErrors},
	"lost_connections": {"lost the connection of ten runs",
		"look into the server's log: mostly a statement that takes too much memory, or a timeout of a pooler; a Leased handler needs no connection while it runs"},
	"committed": {"failed after their handler had ended the relay's transaction", "leave COMMIT and ROLLBACK to the relay in Tx and Batch handlers"},
}

func checkDeadLetters(ctx context.Context, v *visit) error {
	var total int64
	if err := v.row(ctx, deadTotalSQL, nil, &total); err != nil {
		return err
	}
	var taskType, reason string
	var n int64
	var since span
	var more bool
	err := v.each(ctx, deadLettersSQL, nil, []any{&taskType, &reason, &n, &since, &more}, func() {
		why, do := "died", "admin.Client.DeadLetters says more"
		if known, ok := reasons[reason]; ok {
			why, do = known[0], known[1]
		}
		atLeast := ""
		if more {
			atLeast = " or more"
		}
		v.add("dead-letters", Warning, taskType,
			fmt.Sprintf("%s%s of the type %s %s within the last hour, the latest %s ago", plural(n, "task"), atLeast, taskType, why, since), do)
	})
	if err != nil {
		return err
	}
	const keep = "redrive or purge them (package admin, outbox dead); relay.Config.DeadRetention purges by itself"
	switch {
	case total >= manyDead:
		v.add("dead-letters", Warning, "", fmt.Sprintf("there are %d dead letters", total), keep)
	case total > 0:
		v.add("dead-letters", Info, "", plural(total, "dead letter")+" in all", keep)
	}
	return nil
}
