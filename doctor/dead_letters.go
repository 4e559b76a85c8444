package doctor

import (
	"encoding/json"

	"github.com/txoutbox/outbox/internal/taskview"
)

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
       'their last errors say why (admin.Client.DeadLetters, outbox dead list -type TYPE); ' ||
       'mend the cause, then admin.Client.Redrive or outbox dead redrive'
  FROM recent
 UNION ALL
SELECT CASE WHEN letters >= 100000 THEN 'warning' ELSE 'info' END, '', format('dead letters in all: %s', letters),
       'look at them, and redrive those that are to run (package admin, outbox dead); the others may be purged, ' ||
       'by relay.Config.DeadRetention too'
  FROM total WHERE letters > 0
 ORDER BY 2, 3`

// reasons are the words for the reasons of dead letters, as JSON.
func (v *visit) reasons() any {
	text, err := json.Marshal(taskview.Reasons)
	if err != nil {
		panic(err) // they are texts
	}
	return string(text)
}
