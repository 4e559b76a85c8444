package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// transition is how a lease ends: done, back, or changed. Its SQL names the token, so only the holder of the
// lease can make it.
type transition struct {
	row    *row
	token  string
	done   bool
	back   bool           // ready at once, as if it had not been claimed
	change change         // neither done nor back
	lostBy sql.NullString // stays on the row: the relay that died while it ran this task
	apart  bool           // not in one transaction with others: it may have to wait for the row
	reply  chan struct{}
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
	holders map[int]context.CancelCauseFunc
	next    int
	unknown []unknownClaim
	poke    chan struct{}
}

func newLeases(r *Relay) *leases {
	return &leases{r: r, in: make(chan *transition, r.config.Workers), holders: map[int]context.CancelCauseFunc{}, poke: make(chan struct{}, 1)}
}

// hold is a context for one handler, which ends when the relay loses its leases.
func (l *leases) hold(parent context.Context) (ctx context.Context, drop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	id := l.next
	l.holders[id] = cancel
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.holders, id)
		cancel(nil)
	}
}

// lose ends the contexts of all leased handlers: this relay has not reached the server for as long as its leases
// last, so others may run its tasks.
func (l *leases) lose() (lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, cancel := range l.holders {
		cancel(outbox.ErrLeaseLost)
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
       lease_token = NULL, leased_until = NULL
 WHERE task_id = $1 AND lease_token = $2::uuid`

const deadLeaseSQL = `/* outbox: end a lease in the dead letters */
WITH gone AS (
  DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid RETURNING *)
INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, headers, last_error)
SELECT task_id, run_at, created_at, attempted_at, clock_timestamp(), priority, $3::smallint, $4::smallint, $5, task_type, payload, headers, $6 FROM gone`

// write makes the transitions in one transaction. One whose lease is gone changes nothing, and is logged.
func (l *leases) write(group []*transition) error {
	mine := make(map[int64]bool, len(group))
	err := l.r.conns.inTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		clear(mine)
		var done []int64
		var tokens []string
		for _, t := range group {
			if t.done {
				done, tokens = append(done, t.row.id), append(tokens, t.token)
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
		}
		if len(done) == 0 {
			return nil
		}
		rows, err := tx.QueryContext(ctx, l.r.sql(completeManySQL), pq.Array(done), pq.Array(tokens))
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
	})
	if err != nil {
		return err
	}
	for _, t := range group {
		switch {
		case !mine[t.row.id]:
			l.r.log.Warn("outbox: a lease was lost before its task ended; another run decides", "task_type", t.row.taskType, "task_id", t.row.id)
		case !t.done && t.change.reason != "":
			l.r.logDead(t.row, t.change)
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
	state := "scheduled"
	if t.back {
		state = "ready"
	}
	var lastError sql.NullString
	if c.err != nil {
		lastError = sql.NullString{String: errorText(c.err), Valid: true}
	}
	return tx.ExecContext(ctx, l.r.sql(returnLeaseSQL), t.row.id, t.token, state, c.attempt, lastError, t.lostBy, c.wait.Microseconds())
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

// lease is a relay's hold on one task, as its handler sees it.
type lease struct {
	r         *Relay
	id        int64
	token     string
	left      context.Context // ends when the relay stops without the handler
	completed atomic.Bool
	prevented atomic.Bool // the latest Complete met the database's failure, not fn's
}

const lockLeaseSQL = `/* outbox: lock a leased task */
SELECT 1 FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid FOR UPDATE`

const completeSQL = `/* outbox: complete a leased task */
DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid`

// Complete implements outbox.Lease. The row is locked first: whoever takes leases over skips it then, so fn's
// writes and the removal of the task are one.
func (l *lease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	l.prevented.Store(false)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if l.left.Err() != nil {
		return fmt.Errorf("%w: task %d: the relay has stopped", outbox.ErrLeaseLost, l.id)
	}
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil { // it ended in the middle: perhaps by the loss of the lease
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fmt.Errorf("relay: complete task %d: %w", l.id, err)
	}
	l.prevented.Store(true)
	conn, tx, err := l.r.conns.begin(ctx)
	if err != nil {
		return fail(err)
	}
	undo := func() {
		_ = tx.Rollback()
		drop(conn)
	}
	stay := context.AfterFunc(l.left, undo) // the task's row must not stay locked
	committed := false
	defer func() {
		if stay() && committed {
			l.r.conns.put(conn)
		} else {
			undo()
		}
	}()
	_, err = tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL statement_timeout = '30s'; SET LOCAL lock_timeout = '10s'")
	if err != nil {
		return fail(err)
	}
	var found int
	err = tx.QueryRowContext(ctx, l.r.sql(lockLeaseSQL), l.id, l.token).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: task %d", outbox.ErrLeaseLost, l.id)
	}
	if err != nil {
		return fail(err)
	}
	l.prevented.Store(false)
	if err := fn(tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "SET LOCAL role TO DEFAULT"); err != nil { // fn may have taken one without rights here
		// fn's failure: it hid an error, or left rows open, which pgx calls a bad connection.
		return fail(err)
	}
	result, err := tx.ExecContext(ctx, l.r.sql(completeSQL), l.id, l.token)
	if err = one(result, err); err != nil {
		l.prevented.Store(pgerr.Lost(err)) // the connection worked after fn
		return fail(err)
	}
	if err := tx.Commit(); err != nil {
		if pgerr.CommitFailed(err) {
			return fmt.Errorf("relay: complete task %d: commit: %w", l.id, err)
		}
		l.prevented.Store(true)
		return fmt.Errorf("%w: task %d: %w", outbox.ErrCommitUnknown, l.id, err)
	}
	committed = true
	l.completed.Store(true)
	return nil
}
