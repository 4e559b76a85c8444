package admin

import (
	"cmp"
	"context"
	"strconv"
	"time"
)

// DeadGroup is the dead letters of one type with one error.
type DeadGroup struct {
	Type   string
	Error  string // the first line of the last error's first 300 characters, with # for numbers and UUIDs
	Count  int64
	Latest time.Time // when the latest of them died
}

const deadGroupsSQL = `/* outbox: group dead letters by error */
SELECT task_type, error, count(*), max(died_at) FROM (
  SELECT task_type, died_at, regexp_replace(split_part(left(COALESCE(last_error, ''), 300), E'\n', 1),
         '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]+', '#', 'g') AS error
    FROM outbox.dead_task WHERE %s) AS d
 GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT `

// DeadGroups groups the dead letters that pass the filter by type and error, the most frequent
// first. It reads the latest MaxScan, or 10,000, and refuses After.
func (c *Client) DeadGroups(ctx context.Context, q DeadQuery) (groups []DeadGroup, err error) {
	if q.After != "" {
		return nil, invalid("DeadQuery.After: %.60q: DeadGroups begins with the latest; see DeadFilter.DiedBefore", q.After)
	}
	d, err := newDeadPage(q, 20, latestFirst)
	if err != nil {
		return nil, err
	}
	most := cmp.Or(q.MaxScan, pageScan)
	if d.Filter.searches() {
		d.MaxScan = most
	}
	query := deadGroupsSQL + strconv.Itoa(d.Limit)
	return deadRows(ctx, c, "group dead letters by error", &d, query, d.limited(), func(row scanner, g *DeadGroup) error {
		return row.Scan(&g.Type, &g.Error, &g.Count, &g.Latest)
	}, most)
}
