package doctor

import (
	"cmp"
	"context"
	"fmt"

	"github.com/txoutbox/outbox/admin"
)

const manyDead = 100_000 // that are kept

const deadLettersSQL = `/* outbox: recent dead letters */
SELECT task_type, reason, count(*), (extract(epoch FROM clock_timestamp() - max(died_at)) * 1000000)::bigint,
       sum(count(*)) OVER () >= 10000
  FROM (SELECT task_type, reason, died_at FROM outbox.dead_task WHERE died_at > now() - interval '1 hour'
         ORDER BY died_at DESC, task_id DESC LIMIT 10000) AS recent
 GROUP BY task_type, reason ORDER BY 3 DESC, 1, 2`

const deadTotalSQL = `/* outbox: dead letters in all */
SELECT COALESCE(sum(tasks), 0)::bigint
  FROM (SELECT tasks, kind FROM outbox.counter UNION ALL SELECT tasks, kind FROM outbox.counter_log) AS c
 WHERE kind = 'dead'`

func checkDeadLetters(ctx context.Context, v *visit) error {
	var total, n int64
	if err := v.row(ctx, deadTotalSQL, nil, &total); err != nil {
		return err
	}
	var taskType, reason string
	var since span
	var more bool
	err := v.each(ctx, deadLettersSQL, nil, []any{&taskType, &reason, &n, &since, &more}, func() {
		atLeast := ""
		if more {
			atLeast = " or more"
		}
		v.add("dead-letters", Warning, taskType,
			fmt.Sprintf("%s%s of the type %s died within the last hour, the latest %s ago: %s",
				plural(n, "task"), atLeast, taskType, since, cmp.Or(admin.Reasons()[reason], reason)),
			"their last errors say why (admin.Client.DeadLetters, outbox dead list -type TYPE); "+
				"mend the cause, then admin.Client.Redrive or outbox dead redrive")
	})
	if err != nil || total == 0 {
		return err
	}
	severity := Info
	if total >= manyDead {
		severity = Warning
	}
	v.add("dead-letters", severity, "", plural(total, "dead letter")+" in all",
		"redrive or purge them (package admin, outbox dead); relay.Config.DeadRetention purges by itself")
	return nil
}
