package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
)

// LeaseTerms are those of the leases of one claim.
type LeaseTerms struct {
	TaskType    string
	MaxAttempts int           // of a task without a number of its own
	Length      time.Duration // of a row without a timeout of its own; 0: no end
	Share       int64         // µs for each ms of a task's own timeout
	Margin      time.Duration // added to it
	Token       string
}

const LeaseSQL = `/* outbox: lease */
SELECT tasks, xid FROM outbox.lease_tasks($1, $2, $3, $4, $5, $6, $7, $8)`

func (s *Store) leaseArgs(t LeaseTerms, from plan.Start, limit int) []any {
	var length any
	if t.Length > 0 {
		length = t.Length.Microseconds()
	}
	return []any{t.TaskType, limit, s.RelayID, t.Token, length, t.Share, t.Margin.Microseconds(),
		placesText(from)}
}

// placesText is an array with a row for each place, as lease_tasks reads it.
func placesText(from plan.Start) string {
	text := append(make([]byte, 0, 128), '{')
	for i, p := range from.Places() {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '{')
		for _, n := range [...]int64{int64(p.From.Priority), int64(p.From.Attempt), p.From.TaskID} {
			text = append(strconv.AppendInt(text, n, 10), ',')
		}
		text = strconv.AppendInt(text, int64(p.Most), 10)
		if p.Due != nil { // an array with NULL depends on array_nulls
			text = strconv.AppendInt(append(text, ','), *p.Due, 10)
		}
		text = append(text, '}')
	}
	return string(append(text, '}'))
}

// As the journal, a lease must survive the death of a relay, and not that of the server, which may
// lose those of its last second: their tasks run again, and the results of the first runs are refused.
const leaseSettings = "SET LOCAL synchronous_commit = off"

// Lease claims leased tasks in a transaction of its own. COMMIT follows the rows, and found: no
// claim commits whose tasks this relay has not read. After an error with rows the claim may have
// committed.
func (s *Store) Lease(ctx context.Context, t LeaseTerms, from plan.Start, limit int, found func([]*Row)) (c Claimed, err error) {
	args := s.leaseArgs(t, from, limit)
	err = s.Conns.InMessages(ctx, leaseSettings, s.SQL(LeaseSQL), args, false, func(values []driver.Value) error {
		err := c.readLeases(values, t, limit)
		if err == nil && len(c.Rows) > 0 {
			found(c.Rows)
		}
		return err
	})
	return c, err
}

// LeaseWithin claims leased tasks in a transaction.
func (s *Store) LeaseWithin(ctx context.Context, tx *sql.Tx, t LeaseTerms, from plan.Start, limit int) (c Claimed, err error) {
	err = pg.QueryTx(ctx, tx, s.SQL(LeaseSQL), s.leaseArgs(t, from, limit), func(values []driver.Value) error {
		return c.readLeases(values, t, limit)
	})
	return c, err
}

// sharedText is how large a claim's text may be for its tasks to keep it for their payloads.
const sharedText = 64 << 10

// readLeases reads the text of lease_tasks, which has a line for each task: a text costs a driver
// much less than as many rows. The tasks are in the order of claiming.
func (c *Claimed) readLeases(values []driver.Value, t LeaseTerms, limit int) error {
	tasks := pg.Text(values[0])
	c.XID = pg.Text(values[1])
	if tasks == "" {
		return nil
	}
	shared := len(tasks) <= sharedText
	var block []Row // of a small claim: its rows are freed together, as their text is
	if shared {
		block = make([]Row, strings.Count(tasks, "\n")+1)
	}
	for line := range strings.SplitSeq(tasks, "\n") {
		var r *Row
		if shared {
			r, block = &block[0], block[1:]
		} else {
			r, line = new(Row), strings.Clone(line)
		}
		r.TaskType, r.Max = t.TaskType, t.MaxAttempts
		if err := r.FromLine(line); err != nil {
			return err
		}
		c.Rows = append(c.Rows, r)
	}
	slices.SortFunc(c.Rows, (*Row).Compare)
	return TooMany(len(c.Rows), limit)
}

const BeginSuspectsSQL = `/* outbox: count the attempts of suspects */
UPDATE outbox.task SET attempt = LEAST(attempt + 1, 32767) WHERE task_id = ANY ($1::bigint[]) AND lease_token = $2::uuid
RETURNING task_id::text`

// BeginSuspects counts attempts of leased tasks, and returns the tasks. The leases of the others
// are lost.
func (s *Store) BeginSuspects(ctx context.Context, tx *sql.Tx, taskIDs []int64, token string) (counted map[int64]bool, err error) {
	found, err := pg.Texts(tx.QueryContext(ctx, s.SQL(BeginSuspectsSQL), pq.Array(taskIDs), token))
	counted = map[int64]bool{}
	for _, text := range found {
		id, _ := strconv.ParseInt(text, 10, 64)
		counted[id] = true
	}
	return counted, err
}

// A row without an end stays so: its lease is the relay's.
const ExtendSQL = `/* outbox: extend a lease */
UPDATE outbox.task SET leased_until = CASE WHEN leased_until IS NOT NULL
         THEN GREATEST(leased_until, clock_timestamp() + $3::bigint * interval '1 microsecond') END
 WHERE task_id = $1 AND lease_token = $2::uuid`

// Extend moves the end of a lease.
func (s *Store) Extend(ctx context.Context, l Lease, until time.Duration) error {
	return s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, s.SQL(ExtendSQL), l.TaskID, l.Token, until.Microseconds())
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, outbox.ErrLeaseLost)
		}
		return nil
	})
}

const CompleteSQL = `/* outbox: complete a leased task */
SELECT outbox.complete_task($1, $2::uuid)`

// Complete deletes a leased task and then sends the statements after. It returns the transaction's
// id and the time at which the run began, in µs since 1970.
func (s *Store) Complete(ctx context.Context, conn pg.Exclusive, l Lease, after string) (xid string, began int64, err error) {
	err = conn.Together(ctx, "", s.SQL(CompleteSQL), []any{l.TaskID, l.Token}, after, func(values []driver.Value) (err error) {
		text, at, found := strings.Cut(pg.Text(values[0]), " ")
		if found { // not NULL
			xid = text
			began, err = strconv.ParseInt(at, 10, 64)
		}
		return err
	})
	if err == nil && xid == "" {
		err = outbox.ErrLeaseLost
	}
	return xid, began, err
}
