package store

import (
	"context"
	"strconv"

	"github.com/lib/pq"
)

const countSQL = `/* outbox: count what no trigger sees */
INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), t, $2 FROM unnest($1::text[]) t GROUP BY t`

// Count adds runs or tasks of these types, as often as a type is there, to the totals of a kind.
func (s *Store) Count(ctx context.Context, tx Execer, kind string, types []string) error {
	if len(types) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, s.SQL(countSQL), pq.Array(types), kind)
	return err
}

// CountClaimed is a statement that counts ready tasks as claimed, which a group has claimed so far
// without counting them.
func (s *Store) CountClaimed(taskType string, n int) string {
	return s.SQL("INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (") + strconv.Itoa(-n) + ", " + pq.QuoteLiteral(taskType) + ", 'ready')"
}
