package relay

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/handlers"
)

// The claim counts the attempt, but not that of a suspect, which may have to wait for another one.
const leaseSet = `
UPDATE outbox.task t SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END, attempted_at = clock_timestamp(),
       relay_id = $3::uuid, lease_token = $4::uuid,
       leased_until = CASE WHEN $5::bigint > 0 THEN clock_timestamp() + $5::bigint * interval '1 microsecond' END
  WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + rowColumns + `, (SELECT c.relay_id::text FROM c WHERE c.task_id = t.task_id), pg_current_xact_id()::text`

const leaseSQL = `/* outbox: lease */
WITH c AS MATERIALIZED (
  SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + leaseSet

const leaseFromSQL = `/* outbox: lease from a pivot */
WITH c AS MATERIALIZED (
  SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
     AND (priority, attempt, task_id) >= ($6::smallint, $7::smallint, $8::bigint) AND priority <= $6::smallint
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + leaseSet

// lease claims up to c.limit tasks for a Leased handler: when it returns them, they are committed as leased by
// this relay under the token.
func (r *Relay) lease(ctx context.Context, h *handlers.Handler, c claimNext) (rows []*row, token string, err error) {
	token = newUUID()
	var xid string
	take := func(ctx context.Context, tx *sql.Tx, query string, limit int, more ...any) error {
		args := append([]any{h.Type, limit, r.id, token, leaseFor(h.Timeout).Microseconds()}, more...)
		found, err := tx.QueryContext(ctx, r.sql(query), args...)
		if err != nil {
			return err
		}
		got, err := scanRows(found, h, limit, func(t *row) []any { return []any{&t.lostBy, &xid} })
		rows = append(rows, got...)
		return err
	}
	err = r.conns.inTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		rows = nil
		if p := c.pivot; p != nil {
			if err := take(ctx, tx, leaseFromSQL, c.limit, p.priority, p.attempt, p.taskID); err != nil || len(rows) == c.limit {
				return err
			}
		}
		return take(ctx, tx, leaseSQL, c.limit-len(rows))
	})
	if err != nil && len(rows) > 0 {
		r.leases.release(rows, token, xid) // the commit's outcome may be unknown
	}
	return rows, token, err
}

// runLeased runs one leased task to the end of its last transition.
func (r *Relay) runLeased(h *handlers.Handler, t *row, token string) {
	end := func(next transition) {
		next.row, next.token = t, token
		r.leases.finish(next)
	}
	var suspect *turn
	if t.lostBy.Valid {
		// A process died while it ran this: one such task at a time.
		if suspect = r.alone(); suspect == nil {
			wait := aside()
			end(transition{change: change{attempt: t.attempt, wait: wait}, lostBy: t.lostBy})
			r.postponed(wait)
			return
		}
		defer suspect.over()
		if err := r.leases.begin(t, token); err != nil {
			end(transition{back: true, change: change{attempt: t.attempt}, lostBy: t.lostBy})
			return
		}
		t.attempt++
	}
	begun := t.attempt
	if begun > t.max {
		end(transition{change: change{attempt: t.max, reason: reasonAttempts, err: t.lostText(deadAttempts)}})
		return
	}
	left, leave := context.WithCancel(context.Background())
	defer leave()
	l := &lease{r: r, id: t.id, token: token, left: left}
	call := t.task(begun)
	call.Lease = l
	ctx, drop := r.leases.hold(r.handlerContext)
	defer drop()
	suspect.begun()
	out, endContext := r.call(ctx, h.Timeout, h, nil, []*task{call})
	endContext()
	if out.abandoned && out.drained {
		leave()
	}
	if out.abandoned {
		r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", h.Type, "task_id", t.id)
	}
	if l.completed.Load() {
		return
	}
	next := r.resultOf(h, t, out, begun, l.prevented.Load())
	next.apart = out.abandoned // it may be in its Complete
	end(next)
}

// resultOf is the transition that a leased task's outcome asks for. prevented: the database failed its Complete.
func (r *Relay) resultOf(h *handlers.Handler, t *row, out outcome, begun int, prevented bool) transition {
	if out.err == nil {
		return transition{done: true}
	}
	if out.drained || out.leaseLost {
		return transition{back: true, change: change{attempt: begun - 1}, lostBy: t.lostBy}
	}
	result := handlers.ResultOf(out.err)
	if result.Action == handlers.ActionDiscard {
		r.log.Info("outbox: a task was discarded by its handler", "task_type", h.Type, "task_id", t.id, "error", errorText(out.err))
		return transition{done: true}
	}
	if prevented && !out.overran && result.Action == handlers.ActionRetry {
		wait, _ := h.Backoff(1)
		return transition{change: change{attempt: begun - 1, wait: wait, err: out.err}}
	}
	return transition{change: t.after(h, result, begun)}
}
