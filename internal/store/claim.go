package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/timeline"
)

// ClaimTx is the transaction of a claim of a Tx or Batch type. Its settings are made before the
// claim locks a row, so the locks of a relay that freezes are released at any moment.
type ClaimTx struct {
	TaskType    string
	MaxAttempts int           // of a task without a number of its own
	Group       bool          // lock all tasks, and delete the first
	Timeout     time.Duration // of the handler's statements
	Idle        time.Duration // for how long the transaction may be idle
	Untimed     string        // statements that lift transaction_timeout
	Savepoint   string
}

// Settings are statements that bound the transaction, but not the handler's statements. claim_tasks
// makes them itself.
func (t ClaimTx) Settings() string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + pg.Millis(t.Idle) + "; SET LOCAL lock_timeout = " + pg.Millis(pg.Bookkeeping)
}

// begin are statements that begin the handler's part of the transaction.
func (t ClaimTx) begin() string { return t.Untimed + "SAVEPOINT " + t.Savepoint }

// Claimed is the tasks that a claim took, and its transaction.
type Claimed struct {
	Rows []*Row
	XID  string
}

// From a place on, which is the start of the lane, a watermark, or a pivot, where the bound keeps less
// urgent tasks out while urgent ones lie below it; or the tasks that have been due longest.
const ClaimSQL = `/* outbox: claim */
SELECT outbox.claim_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// In the same way for a group: each task is claimed when its turn comes.
const ClaimGroupSQL = `/* outbox: claim a group */
SELECT outbox.claim_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

// Claim takes up to limit tasks, and begins the handler's part of the transaction if there are some.
func (s *Store) Claim(ctx context.Context, conn pg.Exclusive, t ClaimTx, from plan.Start, limit int) (c Claimed, err error) {
	places := from.Places()
	begun := false // the handler's part
	for i, p := range places {
		rest, last := limit-len(c.Rows), i == len(places)-1
		if rest == 0 {
			break
		}
		m := claimMessage{query: ClaimSQL, limit: rest, args: []any{t.TaskType, p.From.Priority, p.From.Attempt, p.From.TaskID,
			p.Most, rest, p.Due, pg.Millis(t.Idle), pg.Millis(pg.Bookkeeping), pg.Millis(t.Timeout)}}
		if begun = last; begun {
			m.after = t.begin()
		}
		if t.Group && limit > 1 {
			m.query, m.args, m.group = ClaimGroupSQL, append(m.args, len(c.Rows) == 0), true
		}
		if err := s.claim(ctx, conn, t, m, &c); err != nil {
			return c, err
		}
	}
	unsorted := c.Rows // RETURNING does not keep the lane's order
	if t.Group && limit > 1 && len(c.Rows) > 0 {
		unsorted = c.Rows[1:] // the first is deleted
	}
	slices.SortFunc(unsorted, (*Row).Compare)
	if len(c.Rows) > 0 && !begun {
		_, err = conn.ExecContext(ctx, t.begin())
	}
	return c, err
}

// By id: the condition names the states that are not ready, so that only the primary key fits. After
// statistics from a drained queue the planner would take the lane's index and read all of it.
const ClaimOneSQL = `/* outbox: claim one task */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = $2 AND task_type = $1 AND state NOT IN ('scheduled', 'leased', 'waiting')
     AND NOT EXISTS (SELECT FROM outbox.task_type WHERE task_type = $1 AND paused)
     FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING outbox.claimed(t)`

// ClaimOne takes one task by its id, if it is ready and its row is not locked.
func (s *Store) ClaimOne(ctx context.Context, conn pg.Exclusive, t ClaimTx, taskID int64) (c Claimed, err error) {
	m := claimMessage{before: t.Settings(), query: ClaimOneSQL, args: []any{t.TaskType, taskID}, limit: 1,
		after: t.begin() + "; SET LOCAL statement_timeout = " + pg.Millis(t.Timeout)}
	err = s.claim(ctx, conn, t, m, &c)
	return c, err
}

// claimMessage is a statement that takes up to limit tasks, and returns each as outbox.claimed does.
type claimMessage struct {
	before, query, after string
	args                 []any
	limit                int
	group                bool // the place of each task is before its text
}

func (s *Store) claim(ctx context.Context, conn pg.Exclusive, t ClaimTx, m claimMessage, c *Claimed) error {
	found := len(c.Rows)
	err := conn.Together(ctx, m.before, s.SQL(m.query), m.args, m.after, func(values []driver.Value) (err error) {
		if values[0] == nil {
			return nil
		}
		r, text := &Row{TaskType: t.TaskType, Max: t.MaxAttempts}, pg.Text(values[0])
		if m.group {
			r.Place, text, _ = strings.Cut(text, "\x1f")
			if slices.ContainsFunc(c.Rows[:found], func(o *Row) bool { return o.Place == r.Place }) {
				return nil // locked by the statement before, near the pivot
			}
		}
		c.Rows = append(c.Rows, r)
		c.XID, err = r.FromText(text)
		return err
	})
	return errors.Join(err, TooMany(len(c.Rows)-found, m.limit))
}

const claimMemberSQL = `/* outbox: claim the next of a group */
SELECT outbox.claim_member($1, $2, $3, $4)`

// ClaimMember claims a task that a group has locked, unless a handler has changed or canceled it or
// its type is paused. It returns the transaction's id.
func (s *Store) ClaimMember(ctx context.Context, conn pg.Exclusive, t ClaimTx, before string, r *Row) (claimed bool, xid string, err error) {
	args := []any{r.Place, pg.Millis(t.Idle), pg.Millis(pg.Bookkeeping), pg.Millis(t.Timeout)}
	err = conn.Together(ctx, before, s.SQL(claimMemberSQL), args, t.begin(), func(values []driver.Value) error {
		var found string
		xid, found, _ = strings.Cut(pg.Text(values[0]), " ")
		claimed = found == "t"
		return nil
	})
	return claimed, xid, err
}

const clockSQL = `/* outbox: the time */
SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint`

// NoteTime notes PostgreSQL's clock in the rows.
func (s *Store) NoteTime(ctx context.Context, conn pg.Exclusive, rows []*Row) error {
	return conn.Together(ctx, "", clockSQL, nil, "", func(values []driver.Value) error {
		for _, r := range rows {
			r.NoteTime(pg.Integer(values[0]))
		}
		return nil
	})
}

// A task may be unreadable: damage on the disk is in its payload, which PostgreSQL stores out of
// line. A claim of several tasks fails as a whole then. The other columns can be read and changed.

// An UPDATE of other columns does not read the payload. The lock lets an Enqueue with the task's
// unique key see that the task waits.
const firstIDsSQL = `/* outbox: lock the tasks that a claim met */
SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1 AND (priority, attempt, task_id) >= ($2, $3, $4)
 ORDER BY priority, attempt, task_id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED`

const firstDueSQL = `/* outbox: lock the tasks that a claim by due time met */
SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1 AND (run_at, task_id) >= (timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3)
 ORDER BY run_at, task_id LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED`

const readSQL = `/* outbox: read tasks */
SELECT count(octet_length(concat_ws('', t.payload, outbox.rest(t)))) FROM outbox.task t WHERE t.task_id = ANY ($1::bigint[])`

const setAsideSQL = `/* outbox: set a task aside that cannot be read */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $2::bigint * interval '1 microsecond', last_error = $3 WHERE task_id = $1`

// SetAsideFor is how long a task is put off that cannot be read.
const SetAsideFor = time.Hour

// SetAside puts off the tasks that cannot be read among the first ready ones of a type, up to limit,
// from a place in its lane on. No attempt is counted. It returns why each cannot be read.
func (s *Store) SetAside(ctx context.Context, taskType string, at plan.Place, limit int) (unreadable map[int64]error, err error) {
	query, args := firstIDsSQL, []any{taskType, at.From.Priority, at.From.Attempt, at.From.TaskID, limit}
	if at.Due != nil {
		query, args = firstDueSQL, []any{taskType, *at.Due, at.From.TaskID, limit}
	}
	err = s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		unreadable = map[int64]error{}
		if _, err := tx.ExecContext(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off"); err != nil {
			return err
		}
		var ids []int64
		rows, err := tx.QueryContext(ctx, s.SQL(query), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
			return err
		}
		return s.setAside(ctx, tx, ids, unreadable)
	})
	if err != nil {
		return nil, err
	}
	return unreadable, nil
}

// setAside puts off those of the tasks that cannot be read, which it finds by halves.
func (s *Store) setAside(ctx context.Context, tx *sql.Tx, ids []int64, unreadable map[int64]error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT reads"); err != nil {
		return err
	}
	_, failed := tx.ExecContext(ctx, s.SQL(readSQL), pq.Array(ids))
	if failed == nil {
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT reads")
		return err
	}
	if !damage(failed) {
		return failed
	}
	if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT reads; RELEASE SAVEPOINT reads"); err != nil {
		return err
	}
	if n := len(ids); n > 1 {
		if err := s.setAside(ctx, tx, ids[:n/2], unreadable); err != nil {
			return err
		}
		return s.setAside(ctx, tx, ids[n/2:], unreadable)
	}
	unreadable[ids[0]] = failed
	text := pgerr.Text(fmt.Errorf("%s and is put off by %v: %w", timeline.Unreadable, SetAsideFor, failed))
	_, err := tx.ExecContext(ctx, s.SQL(setAsideSQL), ids[0], SetAsideFor.Microseconds(), text)
	return err
}

// damage reports whether err may be due to what a row holds. Rights and definitions, say, concern
// all rows.
func damage(err error) bool {
	code := pgerr.Code(err)
	return len(code) == 5 && slices.Contains([]string{"22", "54", "58", "XX"}, code[:2])
}
