package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
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
