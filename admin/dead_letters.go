package admin

import "context"

// DeadQuery selects a page of dead letters. The zero value is the first page of all.
type DeadQuery struct {
	Filter DeadFilter
	// After is TaskPage.Next or DeadCount.Next of the page before; "" is the first page.
	After string
	// Limit is the most rows, at most 1,000; 0 means 100, and 20 for DeadGroups. It does not bound a
	// count.
	Limit int
	// MaxScan bounds how many dead letters a search by a field of DeadFilter without an index
	// reads, and CountDeadLetters counts. A page may then have fewer rows than Limit, or none, and
	// not be the last. 0 is no bound, but 10,000 for DeadGroups; the most is 100,000.
	MaxScan int
}

const maxScan = 100_000

const listDeadSQL = `/* outbox: list dead letters */
SELECT ` + deadColumns + ` FROM outbox.dead_task t
 WHERE %s`

// DeadLetters returns a page of the dead letters that pass the filter, the latest first. Those that
// die meanwhile are before the first page.
//
// A field of the filter without an index, whose value few dead letters have, makes it read all that
// the rest of the filter lets through, unless MaxScan bounds that.
func (c *Client) DeadLetters(ctx context.Context, q DeadQuery) (page TaskPage, err error) {
	d, err := newDeadPage(q, defaultLimit, latestFirst)
	if err != nil {
		return page, err
	}
	if words := q.Filter.String(); words == "all" || words == "type "+q.Filter.Type {
		// The plan of that statement is good for any type.
		return c.Tasks(ctx, TaskQuery{Type: q.Filter.Type, State: StateDead, After: q.After, Limit: q.Limit})
	}
	// One more than the limit, to know whether there is a next page.
	found, err := deadRows(ctx, c, "list dead letters", &d, listDeadSQL, d.limited(), scanTask, d.Limit+1)
	if page.Tasks, page.Next = cut(found, d.Limit, Task.place); page.Next == "" {
		page.Next = d.until.String()
	}
	return page, err
}

// DeadCount is a number of dead letters.
type DeadCount struct {
	Count int64
	Next  string // DeadQuery.After to count on; "": all are counted
}

const countDeadSQL = `/* outbox: count dead letters */
SELECT count(*) FROM outbox.dead_task WHERE %s`

// CountDeadLetters returns how many dead letters pass the filter. It reads all of them, which takes
// its time where they are millions. With a MaxScan it counts among so many at most, the latest
// first.
func (c *Client) CountDeadLetters(ctx context.Context, q DeadQuery) (n DeadCount, err error) {
	d, err := newDeadPage(q, defaultLimit, latestFirst)
	if err != nil {
		return n, err
	}
	d.MaxScan = q.MaxScan
	counts, err := deadRows(ctx, c, "count dead letters", &d, countDeadSQL, "", func(row scanner, n *int64) error {
		return row.Scan(n)
	})
	if err != nil {
		return n, err
	}
	return DeadCount{Count: counts[0], Next: d.until.String()}, nil
}
