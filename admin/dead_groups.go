package admin

import (
	"context"
	"time"

	"github.com/txoutbox/outbox"
)

// DeadGroup is what dead letters of one type have in common.
type DeadGroup struct {
	Type   string
	Error  string // the first line of the last error's first 300 characters, with # for numbers and UUIDs
	Count  int64
	Latest time.Time // when the latest of them died
}

// mostGrouped is how many dead letters are read to group them.
const mostGrouped = 10_000

const deadGroupsSQL = `/* outbox: group dead letters by error */
SELECT task_type, error, count(*), max(died_at) FROM (
  SELECT task_type, died_at, regexp_replace(split_part(left(COALESCE(last_error, ''), 300), E'\n', 1),
         '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]+', '#', 'g') AS error
    FROM outbox.dead_task WHERE %s) AS d
 GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT 20`

// DeadGroups groups the dead letters that pass the filter by type and error, the most frequent
// first, 20 groups at most. It reads the latest 10,000 of them.
func (c *Client) DeadGroups(ctx context.Context, f Filter) (groups []DeadGroup, err error) {
	d, err := newDeadPage(f, Page{}, defaultLimit, latestFirst)
	if err != nil {
		return nil, err
	}
	err = c.read(func(q outbox.Querier) error {
		query, args := d.statement(deadGroupsSQL, " ORDER BY "+d.order.words+" LIMIT %s", mostGrouped)
		groups, err = rows(ctx, q, c.schema.SQL(query), args, func(row scanner, g *DeadGroup) error {
			return row.Scan(&g.Type, &g.Error, &g.Count, &g.Latest)
		})
		return err
	})
	if err != nil {
		return nil, failed("group dead letters by error", err)
	}
	return groups, nil
}
