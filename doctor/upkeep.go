package doctor

import (
	"context"
	"fmt"
	"time"
)

const lateMaintenance = 10 * time.Minute

// The fold is due only while the counter log has rows. Dead letters are purged only by relays with a
// DeadRetention.
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
			v.add("maintenance", Warning, job,
				fmt.Sprintf("the job %s has been due for %s, though relays are alive", job, late),
				"look into the relays' logs at the level Debug; mostly another transaction holds a lock on a table, "+
					"see lock-wait")
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
				"look again in 10 s, until the relay registers it again; else look into its log")
			return
		}
		v.add("schedules", Warning, name, "no living relay has the schedule "+name+" as it was registered last",
			"look again in 10 s, until a relay that has it takes it back; else start one whose "+
				"relay.Config.Schedules has it; "+remove)
	})
	if err != nil {
		return err
	}
	return v.each(ctx, schedulesSQL, nil, []any{&name, &ended, &late}, func() {
		switch {
		case ended:
			v.add("schedules", Info, name,
				"the schedule "+name+" has no next firing: it has ended, or its Next misbehaved, which a relay has "+
					"logged", remove)
		case late.Duration > lateSchedule && !found[name]:
			v.add("schedules", Warning, name, fmt.Sprintf("the schedule %s should have fired %s ago", name, late),
				"start a relay whose relay.Config.Schedules has it as it was registered last; "+remove)
		}
	})
}
