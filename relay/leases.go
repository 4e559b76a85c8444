package relay

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// transition is how a lease ends: done, back, or changed. Its SQL names the token, so only the holder of the
// lease can make it.
type transition struct {
	row      *row
	token    string
	done     bool
	canceled bool           // done as it was canceled
	back     bool           // ready at once, as if it had not been claimed
	change   change         // neither done nor back; if done, err is what it was discarded for
	keep     time.Duration  // done: in the history
	lostBy   sql.NullString // stays on the row: the relay that died while it ran this task
	apart    bool           // not in one transaction with others: it may have to wait for the row
	reply    chan struct{}
}

// unknownClaim is a claim whose commit may have failed or not.
type unknownClaim struct {
	rows       []*row
	token, xid string
}

// leases ends the leases of this relay: one transaction for all that ended meanwhile. A transition is repeated
// until its commit is confirmed, as a lost one would mean a second run.
type leases struct {
	r  *Relay
	in chan *transition

	mu      sync.Mutex
	holders map[*lease]struct{}
	unknown []unknownClaim
	poke    chan struct{}
}

func newLeases(r *Relay) *leases {
	return &leases{r: r, in: make(chan *transition, r.config.Workers), holders: map[*lease]struct{}{}, poke: make(chan struct{}, 1)}
}

// hold notes a lease while its handler runs.
func (l *leases) hold(one *lease) (drop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holders[one] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.holders, one)
	}
}

func (l *leases) held() []*lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.holders))
}

// took ends the context of a handler whose task another relay, or an operator, has taken away. A task that its own
// handler has completed is gone as well.
func (l *leases) took(one *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, runs := l.holders[one]; !runs || one.completing.Load() > 0 || one.completed.Load() {
		return
	}
	delete(l.holders, one)
	one.ctx.cancel(outbox.ErrLeaseLost)
	l.r.log.Warn("outbox: a lease was taken away; its handler is stopped", "task_id", one.id)
}

// lose ends the contexts of all leased handlers: this relay has not reached the server for as long as its leases
// last, so others may run its tasks.
func (l *leases) lose() (lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.holders {
		one.ctx.cancel(outbox.ErrLeaseLost)
	}
	lost = len(l.holders)
	clear(l.holders)
	return lost
}

// release gives a claim back whose commit may have failed or not.
func (l *leases) release(rows []*row, token, xid string) {
	l.mu.Lock()
	l.unknown = append(l.unknown, unknownClaim{rows, token, xid})
	l.mu.Unlock()
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// finish makes a transition and returns when it is committed, when the lease proved to be lost, or when the
// relay gives up as it stops.
func (l *leases) finish(t transition) {
	t.reply = make(chan struct{})
	if t.apart {
		l.settle([]*transition{&t})
		return
	}
	l.in <- &t
	<-t.reply
}

func (l *leases) run(stop <-chan struct{}) {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		select {
		case first := <-l.in:
			group := []*transition{first}
			for more := true; more; {
				select {
				case next := <-l.in:
					group = append(group, next)
				default:
					more = false
				}
			}
			l.settle(group)
		case <-l.poke:
			l.giveBack()
		case <-retry.C:
			l.giveBack()
		case <-stop:
			l.giveBack()
			return
		}
	}
}

// maxDefiniteErrors is how often a transition that PostgreSQL refuses is tried, each time alone.
const maxDefiniteErrors = 3

// settle repeats the group's transaction until it is confirmed or the relay is abandoned. A transition that
// PostgreSQL refuses must not hold up the others, so they go one by one then.
func (l *leases) settle(group []*transition) {
	defer func() {
		for _, t := range group {
			close(t.reply)
		}
	}()
	backoff := newLoopBackoff()
	for refused := 0; ; {
		err := l.write(group)
		if err == nil {
			return
		}
		if code := pgerr.Code(err); code != "" && !pgerr.Lost(err) {
			if len(group) > 1 {
				for i := range group {
					go l.settle(group[i : i+1 : i+1]) // their callers wait for it
				}
				group = nil
				return
			}
			switch code[:2] {
			case "22", "23", "P0": // for what is in the row, or by a trigger; all else may pass
				refused++
			}
			if refused == maxDefiniteErrors {
				l.r.log.Error("outbox: the result of a leased task was refused; it stays leased until its lease or this relay ends", "task_type", group[0].row.taskType, "task_id", group[0].row.id, "error", safeText(err))
				return
			}
		}
		d, _ := backoff.Next()
		select {
		case <-time.After(d):
		case <-l.r.abandoned:
			l.r.log.Warn("outbox: the relay stopped before the results of leased tasks were written; they will run again", "tasks", len(group), "error", safeText(err))
			return
		}
	}
}

// A token is only on leased rows (a CHECK). The statements that have a task's id do not name the state as well: after
// statistics without leased rows the planner would read the index of all of them, dead entries included.
const completeManySQL = `/* outbox: complete leased tasks */
DELETE FROM outbox.task t USING unnest($1::bigint[], $2::uuid[]) AS l (task_id, token)
 WHERE t.task_id = l.task_id AND t.lease_token = l.token
RETURNING t.task_id`

const returnLeaseSQL = `/* outbox: end a lease */
UPDATE outbox.task SET state = $3, attempt = $4, last_error = COALESCE($5, last_error), relay_id = $6::uuid,
       run_at = CASE WHEN $3 = 'ready' THEN run_at ELSE clock_timestamp() + $7::bigint * interval '1 microsecond' END,
       lease_token = NULL, leased_until = NULL, ordering_key = $8
 WHERE task_id = $1 AND lease_token = $2::uuid`

const deadLeaseSQL = `/* outbox: end a lease in the dead letters */
WITH gone AS (
  DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid RETURNING *)
INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error, ` + carriedColumns + `, task_max_attempts)
SELECT task_id, run_at, created_at, attempted_at, clock_timestamp(), priority, $3::smallint, $4::smallint, $5, task_type, payload, headers, $6, ` + carriedColumns + `, max_attempts FROM gone`

const countSQL = `/* outbox: count what no trigger sees */
INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), t, $2 FROM unnest($1::text[]) t GROUP BY t`

// count adds runs or tasks of these types, as often as a type is there, to the totals of a kind.
func (r *Relay) count(ctx context.Context, tx execer, kind string, types []string) error {
	if len(types) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, r.sql(countSQL), pq.Array(types), kind)
	return err
}

// complete deletes tasks that are done, and marks those that were there.
func (l *leases) complete(ctx context.Context, tx *sql.Tx, done *doneLeases, mine map[int64]bool) error {
	query, args := done.statement()
	rows, err := tx.QueryContext(ctx, l.r.sql(query), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		mine[id] = true
	}
	return rows.Err()
}

// write makes the transitions in one transaction. One whose lease is gone changes nothing, and is logged.
func (l *leases) write(group []*transition) error {
	mine := make(map[int64]bool, len(group))
	err := l.r.conns.inTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		clear(mine)
		var done doneLeases
		var failed, canceled []string // types
		for _, t := range group {
			if t.done {
				done.add(t.row.id, t.token, t.keep, t.change.err)
				continue
			}
			result, err := l.writeOne(ctx, tx, t)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			if err != nil {
				return err
			}
			mine[t.row.id] = n == 1
			if n == 1 && t.change.failed {
				failed = append(failed, t.row.taskType)
			}
		}
		if len(done.ids) > 0 {
			if err := l.complete(ctx, tx, &done, mine); err != nil {
				return err
			}
		}
		for _, t := range group {
			if t.canceled && mine[t.row.id] {
				canceled = append(canceled, t.row.taskType)
			}
		}
		return errors.Join(l.r.count(ctx, tx, "failed", failed), l.r.count(ctx, tx, "canceled", canceled))
	})
	if err != nil {
		return err
	}
	for _, t := range group {
		switch {
		case !mine[t.row.id]:
			l.r.log.Warn("outbox: a lease was lost before its task ended; another run decides", "task_type", t.row.taskType, "task_id", t.row.id)
		case !t.done && t.change.reason != "":
			l.r.died(t.row, t.change)
		case !t.done && !t.back:
			l.r.due(t.change.wait)
		}
	}
	return nil
}

func (l *leases) writeOne(ctx context.Context, tx *sql.Tx, t *transition) (sql.Result, error) {
	c := t.change
	if c.reason != "" {
		return tx.ExecContext(ctx, l.r.sql(deadLeaseSQL), t.row.id, t.token, c.attempt, t.row.max, c.reason, errorText(c.err))
	}
	if c.again {
		return l.r.leaseAgain(ctx, tx, t.row.id, t.token, c.wait, c.payload)
	}
	state := "scheduled"
	if t.back {
		state = "ready"
	}
	var lastError sql.NullString
	if c.err != nil {
		lastError = sql.NullString{String: errorText(c.err), Valid: true}
	}
	return tx.ExecContext(ctx, l.r.sql(returnLeaseSQL), t.row.id, t.token, state, c.attempt, lastError, t.lostBy, c.wait.Microseconds(), t.row.keyAfter(c))
}

// giveBack puts back what claims of unknown outcome took, once their outcome is known.
func (l *leases) giveBack() {
	l.mu.Lock()
	claims := l.unknown
	l.unknown = nil
	l.mu.Unlock()
	for _, c := range claims {
		status, err := l.r.statusOf(c.xid)
		if pgerr.Code(err) == "22023" {
			continue // another server has taken over, which never had it
		}
		if err == nil && status == "committed" {
			err = l.write(c.transitions())
		}
		if err != nil || status == "in progress" {
			l.mu.Lock()
			l.unknown = append(l.unknown, c)
			l.mu.Unlock()
		}
	}
}

func (c unknownClaim) transitions() []*transition {
	var back []*transition
	for _, t := range c.rows {
		attempt := t.attempt
		if !t.lostBy.Valid {
			attempt-- // it was not begun
		}
		back = append(back, &transition{row: t, token: c.token, back: true, change: change{attempt: attempt}, lostBy: t.lostBy})
	}
	return back
}

const beginSuspectSQL = `/* outbox: count the attempt of a suspect */
UPDATE outbox.task SET attempt = LEAST(attempt + 1, 32767) WHERE task_id = $1 AND lease_token = $2::uuid`

// begin counts the attempt of a leased suspect. After an error it may be counted or not.
func (l *leases) begin(t *row, token string) error {
	return l.r.conns.inTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		return one(tx.ExecContext(ctx, l.r.sql(beginSuspectSQL), t.id, token))
	})
}
