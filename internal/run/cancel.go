package run

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
)

// What was asked of tasks, of whatever relay; which of them this one runs; and which of its leases
// another one took.
const HearSQL = `/* outbox: hear what became of running tasks */
(SELECT 'asked', task_id, '' FROM outbox.cancel c
  WHERE (SELECT t.state FROM outbox.task t WHERE t.task_id = c.task_id) IS DISTINCT FROM 'leased' ORDER BY cancel_id LIMIT 1000)
UNION ALL
SELECT 'cancel', task_id, '' FROM outbox.cancel WHERE task_id = ANY ($1::bigint[])
UNION ALL
SELECT 'lost', l.task_id, l.token::text FROM unnest($2::bigint[], $3::uuid[]) AS l (task_id, token)
 WHERE (SELECT t.lease_token FROM outbox.task t WHERE t.task_id = l.task_id) IS DISTINCT FROM l.token`

// Tasks that were asked to end and wait again, and requests whose task is gone. By arrays, as a
// join would tempt the planner to read the whole table of tasks.
const RemoveCanceledSQL = `/* outbox: remove canceled tasks */
WITH waiting AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = ANY ($1::bigint[]) AND state <> 'leased' FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) RETURNING task_type),
counted AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), task_type, 'canceled' FROM gone GROUP BY task_type),
runs AS (DELETE FROM outbox.running WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) AND task_ids IS NULL)
DELETE FROM outbox.cancel c WHERE c.task_id = ANY ($1::bigint[])
   AND (c.task_id = ANY (ARRAY(SELECT task_id FROM waiting))
     OR (SELECT t.task_id FROM outbox.task t WHERE t.task_id = c.task_id) IS NULL)
RETURNING ` + pg.CommitAsync

// hearing is a job of the heartbeat's, done at each interval.
type hearing struct {
	r        *Runner
	leases   *Leases
	interval time.Duration
	ranAt    time.Time // when a task was seen to run
	heardAt  time.Time // when it was read what became of running tasks
}

// NewHearing returns a hearing for the parts of one relay.
func NewHearing(r *Runner, l *Leases, interval time.Duration) *hearing {
	return &hearing{r: r, leases: l, interval: interval}
}

// idle is how long a relay that runs nothing does not hear: what is left to it are requests that
// outlived a run elsewhere.
func (h *hearing) idle() time.Duration { return 10*h.interval - time.Second }

// Hear ends the contexts of handlers whose task was canceled or whose lease was taken, and removes
// canceled tasks that wait. It reads only, unless somebody cancels.
func (h *hearing) Hear(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	r := h.r
	running, held := r.openClaims(), h.leases.held()
	taskIDs, leasedIDs, tokens := []int64{}, []int64{}, []string{}
	for id := range running {
		taskIDs = append(taskIDs, id)
	}
	for _, l := range held {
		leasedIDs, tokens = append(leasedIDs, l.row.ID), append(tokens, l.token)
	}
	if len(running)+len(held) > 0 {
		h.ranAt = time.Now()
	} else if time.Since(h.ranAt) > h.idle() && time.Since(h.heardAt) < h.idle() {
		return h.interval, nil
	}
	return h.interval, on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, r.SQL(HearSQL), pq.Array(append(taskIDs, leasedIDs...)), pq.Array(leasedIDs), pq.Array(tokens))
		if err != nil {
			return err
		}
		defer rows.Close()
		var asked []int64
		canceled := map[int64]bool{}
		for rows.Next() {
			var what, token string
			var id int64
			if err := rows.Scan(&what, &id, &token); err != nil {
				return err
			}
			switch what {
			case "asked":
				asked = append(asked, id)
			case "cancel":
				canceled[id] = true
			case "lost":
				if i := slices.IndexFunc(held, func(l *lease) bool { return l.row.ID == id && l.token == token }); i >= 0 {
					h.leases.took(held[i])
				}
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		_ = rows.Close()
		for id := range canceled {
			if c := running[id]; c != nil {
				c.cancelTask(id)
			}
		}
		for _, l := range held {
			if canceled[l.row.ID] {
				l.ctx.cancel(outbox.ErrCanceled)
			}
		}
		if len(asked) > 0 {
			if _, err := conn.ExecContext(ctx, r.SQL(RemoveCanceledSQL), pq.Array(asked)); err != nil {
				return err // it is heard again soon
			}
		}
		h.heardAt = time.Now()
		return nil
	})
}
