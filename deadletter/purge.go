package deadletter

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
)

const purgeSQL = `/* outbox: purge dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, true
  FROM gone JOIN d USING (task_id) ORDER BY d.died_at, d.task_id`

// Purge deletes up to limit dead letters that pass the filter, the oldest first, with one statement, and returns how many.
// A limit of 0 means 1,000, which is also the most. Fewer than limit: there are no more, but for those that another transaction
// is moving or deleting. The zero Filter is refused, as it means all: say so by a DiedBefore that is far away. An Error or a Reason that few
// letters have makes it read all that the rest of the filter lets through: see [PurgePage].
//
// On a transaction it commits with it; on a *sql.DB it is a transaction of its own. Errors are as of [Redrive].
func Purge(ctx context.Context, q outbox.Querier, f Filter, limit int, opts ...Option) (n int64, err error) {
	s, err := newSettings(opts)
	if err != nil {
		return 0, err
	}
	if limit == 0 {
		limit = maxRows
	}
	if limit < 0 || limit > maxRows {
		return 0, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxRows, maxRows)
	}
	if err := f.purgeable(); err != nil {
		return 0, err
	}
	var b binder
	if err := f.bind(&b); err != nil {
		return 0, err
	}
	query := s.sql(fmt.Sprintf(purgeSQL, b.where()+fmt.Sprintf(inPages, b.arg(limit))))
	err = inTx(ctx, q, func(q outbox.Querier) error {
		gone, err := move(ctx, q, query, b.args...)
		n = int64(len(gone))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deadletter: purge: %w", err)
	}
	return n, nil
}

// PurgeMany deletes all dead letters that pass the filter and died before the call, the oldest first. The zero Filter is refused
// as by [Purge]. perSecond bounds how many it deletes in a second; 0 means as many as it can. Each transaction deletes 1,000 at
// most. What it returns is as of [RedriveMany]. For dead letters that are to go by themselves see relay.Config.DeadRetention.
func PurgeMany(ctx context.Context, db *sql.DB, f Filter, perSecond int, opts ...Option) (n int64, err error) {
	if err := f.purgeable(); err != nil {
		return 0, err
	}
	if n, err = many(ctx, db, f, perSecond, purgeSQL, opts); err != nil {
		err = fmt.Errorf("deadletter: purge: %w", err)
	}
	return n, err
}

func (f Filter) purgeable() error {
	if f.zero() {
		return fmt.Errorf("%w: the zero Filter would purge all dead letters: to mean that, set DiedBefore to a time far away", ErrInvalid)
	}
	return nil
}
