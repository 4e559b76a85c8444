package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
)

// order is the one in which pages of dead letters go on.
type order struct{ words, after, from, until string }

var (
	oldestFirst = order{"died_at, task_id", ">", ">=", "<="}
	latestFirst = order{"died_at DESC, task_id DESC", "<", "<=", ">="}
)

// deadPage is a page of dead letters before it is read.
type deadPage struct {
	DeadQuery
	order   order
	after   deadPlace
	until   deadPlace // zero: to the last one
	before  int64     // they died before this time, in µs since 1970; 0: at any time
	by      *string   // who acts, for statements that write it
	indexed bool      // without the conditions that no index answers
}

// newDeadPage checks a query. MaxScan is of use only where no index tells which pass.
func newDeadPage(q DeadQuery, ifZero int, o order) (d deadPage, err error) {
	if q.MaxScan < 0 || q.MaxScan > maxScan {
		return d, invalid("DeadQuery.MaxScan: %d: must be between 1 and %d, or 0 for no bound", q.MaxScan, maxScan)
	}
	if err := errors.Join(checkLimit(&q.Limit, ifZero), q.Filter.check()); err != nil {
		return d, err
	}
	d = deadPage{DeadQuery: q, order: o}
	if !q.Filter.searches() {
		d.MaxScan = 0
	}
	d.after, err = parseDeadPlace(q.After)
	return d, err
}

// bind are the conditions of the dead letters that pass the filter after one place and not after
// the other.
func (d deadPage) bind() *binder {
	b := &binder{indexed: d.indexed}
	d.Filter.bind(b)
	if d.before != 0 {
		b.and("died_at < "+moment, d.before)
	}
	none := deadPlace{}
	if d.after != none {
		b.and("(died_at, task_id) "+d.order.after+" ("+moment+", ?)", d.after.diedAt, d.after.taskID)
	}
	if d.until != none {
		b.and("(died_at, task_id) "+d.order.until+" ("+moment+", ?)", d.until.diedAt, d.until.taskID)
	}
	// PostgreSQL takes two comparisons of rows for independent, and so a page for a large part of all.
	if d.after != none && d.until != none {
		b.and("died_at "+d.order.from+" "+moment, d.after.diedAt)
		b.and("died_at "+d.order.until+" "+moment, d.until.diedAt)
	}
	return b
}

// statement is a query with the conditions and what follows them, which may have a place for n, and
// with who acts.
func (d deadPage) statement(query, tail string, n ...any) (string, []any) {
	b := d.bind()
	where := b.where()
	for _, v := range n {
		tail = fmt.Sprintf(tail, b.arg(v))
	}
	if d.by == nil {
		return fmt.Sprintf(query, where+tail), b.args
	}
	return fmt.Sprintf(query, where+tail, b.arg(*d.by)+"::text"), b.args
}

// limited is the end of a statement of a page with so many rows.
func (d deadPage) limited() string { return " ORDER BY " + d.order.words + " LIMIT %s" }

// deadRows reads the rows of a page, for a call that is named in errors.
func deadRows[T any](ctx context.Context, c *Client, call string, d *deadPage, query, tail string,
	scan func(scanner, *T) error, n ...any) (found []T, err error) {
	err = c.read(func(q outbox.Querier) error {
		if err := d.findEnd(ctx, c, q); err != nil {
			return err
		}
		query, args := d.statement(query, tail, n...)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scan)
		return err
	})
	return found, failed(call, err)
}

// The last dead letter that a page looks at.
const deadEndSQL = `/* outbox: the end of a page of dead letters */
SELECT (extract(epoch FROM died_at) * 1000000)::bigint, task_id FROM outbox.dead_task
 WHERE %s LIMIT 1`

// findEnd sets until to the last dead letter that the page may look at, if that is bounded and
// there are so many.
func (d *deadPage) findEnd(ctx context.Context, c *Client, q outbox.Querier) error {
	if d.MaxScan == 0 {
		return nil
	}
	all := *d
	all.indexed, all.by = true, nil
	query, args := all.statement(deadEndSQL, " ORDER BY "+d.order.words+" OFFSET %s", d.MaxScan-1)
	var end deadPlace
	err := q.QueryRowContext(ctx, c.schema.SQL(query), args...).Scan(&end.diedAt, &end.taskID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	d.until = end
	return err
}
