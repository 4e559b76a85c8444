package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// The claim counts the attempt, but not that of a suspect, which may have to wait for another one. Suspects are few, and so
// looked up among themselves: a look-up in c for each row would cost a large claim most of its time.
const leaseSet = `,
lost AS MATERIALIZED (SELECT task_id, relay_id FROM c WHERE relay_id IS NOT NULL)
UPDATE outbox.task t SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END, attempted_at = clock_timestamp(),
       relay_id = $3::uuid, lease_token = $4::uuid,
       leased_until = clock_timestamp() + COALESCE(t.timeout_ms * $6::bigint + $7::bigint, $5::bigint) * interval '1 microsecond'
  WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + rowColumns + `, (SELECT l.relay_id::text FROM lost l WHERE l.task_id = t.task_id LIMIT 1), CASE WHEN t.task_id = (SELECT task_id FROM c LIMIT 1) THEN pg_current_xact_id()::text END`

const leaseSQL = `/* outbox: lease */
WITH c AS MATERIALIZED (
  SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
     AND (priority, attempt, task_id) >= ($8::smallint, $9::smallint, $10::bigint)
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + leaseSet

// Up to $11 tasks from each pivot on. Where those of two pivots overlap, a task is in c twice.
const leaseFromSQL = `/* outbox: lease from pivots */
WITH c AS MATERIALIZED (
  SELECT f.task_id, f.relay_id FROM unnest($10::bigint[]) AS p (task_id)
   CROSS JOIN LATERAL (
     SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
        AND (priority, attempt, task_id) >= ($8::smallint, $9::smallint, p.task_id) AND priority <= $8::smallint
      ORDER BY priority, attempt, task_id LIMIT $11 FOR UPDATE SKIP LOCKED) f
   LIMIT $2)` + leaseSet

// leaseNext is a claim of up to limit leased tasks: a few from each pivot on, if there are some, and then from the floor of the lane on,
// nil for its start.
type leaseNext struct {
	limit   int
	floor   *pivot
	pivots  []pivot // of the same priority and attempt
	lead    int     // most tasks from each of them
	started int     // of the lane's floors
}

// from are the arguments for the pivots.
func (n leaseNext) from() []any {
	ids := make([]int64, len(n.pivots))
	for i, p := range n.pivots {
		ids[i] = p.taskID
	}
	return []any{n.pivots[0].priority, n.pivots[0].attempt, pq.Array(ids), n.lead}
}

// lease claims up to n.limit tasks for a Leased handler, or up to allowed, if there are only so many slots for its type: when
// it returns them, they are committed as leased by this relay under the token.
func (r *Relay) lease(ctx context.Context, h *handlers.Handler, n leaseNext) (rows []*row, token string, allowed int, err error) {
	for try := 1; ; try++ {
		rows, token, allowed, err = r.leaseOnce(ctx, h, n)
		// For all of SKIP LOCKED a claim can wait for another transaction: where one that it found at work on a row ends in that
		// moment, and the row's next version is being changed already. Two can wait for each other then.
		if !pgerr.Conflict(err) || len(rows) > 0 || try == conflictTries {
			return rows, token, allowed, err
		}
	}
}

func (r *Relay) leaseOnce(ctx context.Context, h *handlers.Handler, n leaseNext) (rows []*row, token string, allowed int, err error) {
	token = newUUID()
	sent := time.Now()
	var xid string
	take := func(ctx context.Context, tx *sql.Tx, query string, limit int, more ...any) error {
		registered, perMS, margin := rowLease(h)
		args := append([]any{h.Type, limit, r.id, token, registered, perMS, margin}, more...)
		found, err := tx.QueryContext(ctx, r.sql(query), args...)
		if err != nil {
			return err
		}
		got, err := scanRows(found, h, limit, func(t *row) []any { return []any{&t.lostBy, onlyOne{&xid}} })
		rows = append(rows, got...)
		return err
	}
	err = r.conns.inTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		rows, allowed = nil, n.limit
		var slots []int64
		if h.MaxRunningTotal > 0 {
			if slots, err = r.lockSlots(ctx, h, tx, n.limit); err != nil || len(slots) == 0 {
				allowed = 0
				return err
			}
			allowed = len(slots)
		}
		if len(n.pivots) > 0 {
			if err := take(ctx, tx, leaseFromSQL, allowed, n.from()...); err != nil {
				return err
			}
		}
		if rest := allowed - len(rows); rest > 0 {
			from := laneStart
			if n.floor != nil {
				from = *n.floor
			}
			if err := take(ctx, tx, leaseSQL, rest, from.priority, from.attempt, from.taskID); err != nil {
				return err
			}
		}
		return r.fillSlots(ctx, h, tx, slots, rows, token)
	})
	for _, t := range rows {
		t.leasedAt = sent
	}
	if err != nil && len(rows) > 0 {
		r.leases.release(rows, token, xid) // the commit's outcome may be unknown
	}
	return rows, token, allowed, err
}

// resultOf is the transition that a leased task's outcome asks for. prevented: the database failed its Complete.
func (r *Relay) resultOf(h *handlers.Handler, t *row, out outcome, begun int, prevented bool) transition {
	if out.err == nil {
		return transition{done: true, keep: h.Keep}
	}
	if out.canceled {
		r.logCanceled(h.Type, []int64{t.id})
		return transition{done: true, canceled: true}
	}
	if runsAgain(out.err) {
		return transition{change: t.after(h, handlers.ResultOf(out.err), begun)}
	}
	if out.drained || out.leaseLost {
		return transition{back: true, change: change{attempt: begun - 1}, lostBy: t.lostBy}
	}
	result := handlers.ResultOf(out.err)
	if result.Action == handlers.ActionDiscard {
		r.log.Info("outbox: a task was discarded by its handler", "task_type", h.Type, "task_id", t.id, "error", errorText(out.err))
		return transition{done: true, keep: h.Keep, change: change{err: out.err}}
	}
	if prevented && !out.overran && result.Action == handlers.ActionRetry {
		wait, _ := h.Backoff(1)
		return transition{change: change{attempt: begun - 1, wait: wait, err: out.err}}
	}
	return transition{change: t.after(h, result, begun)}
}
