package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// The claim counts the attempt, but not that of a suspect, which may have to wait for another one.
const leaseSet = `
UPDATE outbox.task t SET state = 'leased', attempt = CASE WHEN t.relay_id IS NULL THEN LEAST(t.attempt + 1, 32767) ELSE t.attempt END, attempted_at = clock_timestamp(),
       relay_id = $3::uuid, lease_token = $4::uuid,
       leased_until = clock_timestamp() + COALESCE(t.timeout_ms * $6::bigint + $7::bigint, $5::bigint) * interval '1 microsecond'
  WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + rowColumns + `, (SELECT c.relay_id::text FROM c WHERE c.task_id = t.task_id), pg_current_xact_id()::text`

const leaseSQL = `/* outbox: lease */
WITH c AS MATERIALIZED (
  SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + leaseSet

const leaseFromSQL = `/* outbox: lease from a pivot */
WITH c AS MATERIALIZED (
  SELECT task_id, relay_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
     AND (priority, attempt, task_id) >= ($8::smallint, $9::smallint, $10::bigint) AND priority <= $8::smallint
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + leaseSet

// lease claims up to c.limit tasks for a Leased handler, or up to allowed, if there are only so many slots for its type: when
// it returns them, they are committed as leased by this relay under the token.
func (r *Relay) lease(ctx context.Context, h *handlers.Handler, c claimNext) (rows []*row, token string, allowed int, err error) {
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
		got, err := scanRows(found, h, limit, func(t *row) []any { return []any{&t.lostBy, &xid} })
		rows = append(rows, got...)
		return err
	}
	err = r.conns.inTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
		rows, allowed = nil, c.limit
		var slots []int64
		if h.MaxRunningTotal > 0 {
			if slots, err = r.lockSlots(ctx, h, tx, c.limit); err != nil || len(slots) == 0 {
				allowed = 0
				return err
			}
			allowed = len(slots)
		}
		if p := c.pivot; p != nil {
			if err := take(ctx, tx, leaseFromSQL, allowed, p.priority, p.attempt, p.taskID); err != nil {
				return err
			}
		}
		if rest := allowed - len(rows); rest > 0 {
			if err := take(ctx, tx, leaseSQL, rest); err != nil {
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
	l := &lease{r: r, h: h, id: t.id, token: token, left: left, alone: h.Lease > 0, ctx: newLimited(r.handlerContext)}
	call := t.task(begun)
	call.Lease = l
	drop := r.leases.hold(l)
	suspect.begun()
	if timeout := timeoutOf(h, t); l.alone {
		l.ctx.endAt(t.leasedAt.Add(timeout), errRanOut)
	} else if timeout > 0 {
		l.ctx.endAt(time.Now().Add(timeout), timeoutError(timeout))
	}
	out := r.call(l.ctx, h, nil, []*task{call})
	drop()
	l.ctx.cancel(nil)
	if out.abandoned && out.drained {
		leave()
	}
	if out.abandoned {
		r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", h.Type, "task_id", t.id)
	}
	if l.completed.Load() {
		if runsAgain(out.err) {
			r.log.Error("outbox: RunAgain has no effect after Complete; return it from the function that Complete is given", "task_type", h.Type, "task_id", t.id)
		}
		return
	}
	next := r.resultOf(h, t, out, begun, l.prevented.Load())
	next.apart = out.abandoned // it may be in its Complete
	end(next)
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
