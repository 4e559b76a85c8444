package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// What was asked of tasks, of whatever relay; which of them this one runs; and which of its leases
// another one took.
const hearSQL = `/* outbox: hear what became of running tasks */
(SELECT 'asked', task_id, '' FROM outbox.cancel c
  WHERE (SELECT t.state FROM outbox.task t WHERE t.task_id = c.task_id) IS DISTINCT FROM 'leased' ORDER BY cancel_id LIMIT 1000)
UNION ALL
SELECT 'cancel', task_id, '' FROM outbox.cancel WHERE task_id = ANY ($1::bigint[])
UNION ALL
SELECT 'lost', l.task_id, l.token::text FROM unnest($2::bigint[], $3::uuid[]) AS l (task_id, token)
 WHERE (SELECT t.lease_token FROM outbox.task t WHERE t.task_id = l.task_id) IS DISTINCT FROM l.token`

// Tasks that were asked to end and wait again, and requests whose task is gone. By arrays, as a
// join would tempt the planner to read the whole table of tasks.
const removeCanceledSQL = `/* outbox: remove canceled tasks */
WITH waiting AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = ANY ($1::bigint[]) AND state <> 'leased' FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) RETURNING task_type),
counted AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), task_type, 'canceled' FROM gone GROUP BY task_type),
runs AS (DELETE FROM outbox.running WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) AND task_ids IS NULL)
DELETE FROM outbox.cancel c WHERE c.task_id = ANY ($1::bigint[])
   AND (c.task_id = ANY (ARRAY(SELECT task_id FROM waiting))
     OR (SELECT t.task_id FROM outbox.task t WHERE t.task_id = c.task_id) IS NULL)`

// idleHearing is how long a relay that runs nothing does not hear: what is left to it are requests
// that outlived a run elsewhere.
const idleHearing = 3*upkeep.Interval - time.Second

// hearing is a job of the heartbeat's.
type hearing struct {
	r       *runner
	ranAt   time.Time // when a task was seen to run
	heardAt time.Time // when it was read what became of running tasks
}

// hear ends the contexts of handlers whose task was canceled or whose lease was taken, and removes
// canceled tasks that wait. It reads only, unless somebody cancels.
func (h *hearing) hear(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	r := h.r
	running, held := r.runningAttempts(), r.leases.held()
	taskIDs, leasedIDs, tokens := []int64{}, []int64{}, []string{}
	byID := make(map[leaseID]*lease, len(held))
	for id := range running {
		taskIDs = append(taskIDs, id)
	}
	for _, l := range held {
		leasedIDs, tokens = append(leasedIDs, l.id), append(tokens, l.token)
		byID[leaseID{l.id, l.token}] = l
	}
	if len(running)+len(held) > 0 {
		h.ranAt = time.Now()
	} else if time.Since(h.ranAt) > idleHearing && time.Since(h.heardAt) < idleHearing {
		return upkeep.Interval, nil
	}
	return upkeep.Interval, on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, r.SQL(hearSQL), pq.Array(append(taskIDs, leasedIDs...)), pq.Array(leasedIDs), pq.Array(tokens))
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
				r.leases.took(byID[leaseID{id, token}])
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		_ = rows.Close()
		for id := range canceled {
			if a := running[id]; a != nil {
				a.cancelTask(id)
			}
		}
		for _, l := range held {
			if canceled[l.id] {
				l.ctx.cancel(outbox.ErrCanceled)
			}
		}
		if len(asked) > 0 {
			if _, err := conn.ExecContext(ctx, r.SQL(removeCanceledSQL), pq.Array(asked)); err != nil {
				return err // it is heard again soon
			}
		}
		h.heardAt = time.Now()
		return nil
	})
}

// cancelTask ends the handler's context as one of its tasks was canceled.
func (a *attempt) cancelTask(id int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.canceled == nil {
		a.canceled = map[int64]bool{}
	}
	a.canceled[id] = true
	if a.cancel != nil {
		a.cancel(outbox.ErrCanceled)
	}
}

// handlerContext ends when the relay gives up waiting for handlers, and when one of the tasks is
// canceled.
func (a *attempt) handlerContext() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(a.r.handling)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel = cancel; len(a.canceled) > 0 {
		cancel(outbox.ErrCanceled)
	}
	return ctx, func() { cancel(nil) }
}

func (a *attempt) canceledIDs() (canceled []int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.canceled {
		canceled = append(canceled, id)
	}
	return canceled
}

const forgetCancelSQL = `/* outbox: forget a request to cancel */
DELETE FROM outbox.cancel WHERE task_id = $1`

// endCanceled undoes what the handler did and removes the canceled task. Of a batch the others go
// back as they were.
func (a *attempt) endCanceled(ctx context.Context, out callResult) error {
	last := len(a.rows) == 1
	err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := a.undo(ctx, c); err != nil || !last {
			return err
		}
		if _, err := c.ExecContext(ctx, a.ForgetTasks(a.rows)); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, a.SQL(forgetCancelSQL), a.rows[0].ID); err != nil {
			return err
		}
		if err := a.Count(ctx, c, "canceled", []string{a.h.Type}); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	if err != nil {
		return a.broken(ctx, out, err)
	}
	if !last {
		a.r.journal.ForgetRuns(a.runs)()
		a.r.journal.Close(a.runs)
		a.giveBack()
		a.removeCanceled()
		return nil
	}
	a.watch.set(a.rows[0].ID, Canceled)
	if err := a.commit(); err != nil {
		a.r.journal.ForgetRuns(a.runs)
		return err
	}
	a.r.logCanceled(a.h.Type, a.canceledIDs())
	return nil
}

// removeCanceled removes the canceled tasks of a claim that is gone, if they can be had; else
// relays do with their heartbeats.
func (a *attempt) removeCanceled() {
	canceled := a.canceledIDs()
	a.watch.canceled(canceled)
	for try := range 6 {
		if try > 0 {
			store.Pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		var n int64
		err := a.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
			result, err := tx.ExecContext(ctx, a.SQL(removeCanceledSQL), pq.Array(canceled))
			if err == nil {
				n, err = result.RowsAffected()
			}
			return err
		})
		if err == nil && n >= int64(len(canceled)) {
			a.r.logCanceled(a.h.Type, canceled)
			return
		}
	}
}

func (r *runner) logCanceled(taskType string, taskIDs []int64) {
	r.log.Info("outbox: running tasks were canceled", "task_type", taskType, "tasks", taskIDs)
}
