package doctor

import (
	"context"
	"fmt"
)

const manyDead = 100_000 // that are kept

const deadLettersSQL = `/* outbox: recent dead letters */
SELECT task_type, reason, count(*), (extract(epoch FROM clock_timestamp() - max(died_at)) * 1000000)::bigint, sum(count(*)) OVER () >= 10000
  FROM (SELECT task_type, reason, died_at FROM outbox.dead_task WHERE died_at > now() - interval '1 hour'
         ORDER BY died_at DESC, task_id DESC LIMIT 10000) AS recent
 GROUP BY task_type, reason ORDER BY 3 DESC, 1, 2`

const deadTotalSQL = `/* outbox: dead letters in all */
SELECT COALESCE(sum(tasks), 0)::bigint
  FROM (SELECT tasks, kind FROM outbox.counter UNION ALL SELECT tasks, kind FROM outbox.counter_log) AS c WHERE kind = 'dead'`

const lookAtErrors = "their last errors say why (admin.Client.DeadLetters, outbox dead list -type TYPE); " +
	"mend the cause, then admin.Client.Redrive or outbox dead redrive"

// reasons are the fate of the tasks, and the remedy.
var reasons = map[string][2]string{
	"attempts": {"used up their attempts", lookAtErrors},
	"handler":  {"died, given up by their handler,", lookAtErrors},
	"lost_connections": {"lost the connection of ten runs",
		"look into the server's log: mostly a statement that takes too much memory, or a timeout of a pooler; " +
			"a Leased handler needs no connection while it runs"},
	"committed": {"failed after their handler had ended the relay's transaction",
		"leave COMMIT and ROLLBACK to the relay in Tx and Batch handlers"},
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
