package admin

import (
	"context"

	"github.com/txoutbox/outbox"
)

const listDeadSQL = `/* outbox: list dead letters */
SELECT ` + deadColumns + ` FROM outbox.dead_task t
 WHERE %s`

// DeadLetters returns a page of the dead letters that pass the filter, the latest first. Those that
// die meanwhile are before the first page.
//
// A field of the filter without an index, whose value few dead letters have, makes it read all that
// the rest of the filter lets through, unless Page.MaxScan bounds that.
func (c *Client) DeadLetters(ctx context.Context, f Filter, p Page) (tasks []Task, next string, err error) {
	d, err := newDeadPage(f, p, defaultLimit, latestFirst)
	if err != nil {
		return nil, "", err
	}
	if words := f.String(); words == "all" || words == "type "+f.Type { // the plan of that statement is good for any type
		return c.Tasks(ctx, f.Type, Dead, p)
	}
	err = c.read(func(q outbox.Querier) error {
		if err := d.findEnd(ctx, c, q); err != nil {
			return err
		}
		// One more than the limit, to know whether there is a next page.
		query, args := d.statement(listDeadSQL, " ORDER BY "+d.order.words+" LIMIT %s", d.Limit+1)
		tasks, err = rows(ctx, q, c.schema.SQL(query), args, scanTask)
		return err
	})
	if err != nil {
		return nil, "", failed("list dead letters", err)
	}
	if tasks, next = cut(tasks, d.Limit, Task.place); next == "" {
		next = d.until.String()
	}
	return tasks, next, nil
}

const countDeadSQL = `/* outbox: count dead letters */
SELECT count(*) FROM outbox.dead_task WHERE %s`

// CountDeadLetters returns how many dead letters pass the filter. It reads all of them, which takes
// its time where they are millions. With a Page.MaxScan it counts among so many at most, the latest
// first, from Page.After on; next is where the next page begins, "" after the last one.
func (c *Client) CountDeadLetters(ctx context.Context, f Filter, p Page) (n int64, next string, err error) {
	d, err := newDeadPage(f, p, defaultLimit, latestFirst)
	if err != nil {
		return 0, "", err
	}
	d.MaxScan = p.MaxScan
	err = c.read(func(q outbox.Querier) error {
		if err := d.findEnd(ctx, c, q); err != nil {
			return err
		}
		query, args := d.statement(countDeadSQL, "")
		return q.QueryRowContext(ctx, c.schema.SQL(query), args...).Scan(&n)
	})
	if err != nil {
		return 0, "", failed("count dead letters", err)
	}
	return n, d.until.String(), nil
}
