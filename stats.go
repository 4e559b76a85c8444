package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/counts"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// TypeStats are the counts of one task type at one moment.
type TypeStats struct {
	Type string

	// Tasks that are still to do. The task of a running Tx or Batch handler counts as ready until
	// its claim commits, as a rollback of the claim would leave it so. Handlers of a GroupCommit
	// count the tasks of their group as ready too.
	Ready     int64
	Scheduled int64 // until their run_at, with Attempt 0
	Retrying  int64 // likewise, with an Attempt above 0: an attempt has failed
	Leased    int64 // held by Leased handlers
	Waiting   int64 // for another task

	// Dead letters that are there.
	Dead int64

	// Finished are all the tasks that are done since the counters began: those that were enqueued
	// and are neither to do nor died nor were canceled nor removed as expired. A task that runs again
	// is not finished, a redriven dead letter may finish yet, and a row that was deleted by hand counts
	// as finished.
	Finished int64

	// Failed are the runs that failed since the counters began: handlers that returned an error or
	// Dead, panicked, or ran out of time, each of them an attempt. With another result of package
	// handlers a run did not fail; runs that were lost with their process or their connection are
	// not counted.
	Failed int64

	// Expired are the tasks that were removed since the counters began, as they had expired and their
	// handler is registered with handlers.DiscardExpired.
	Expired int64

	// OldestReady is how long the oldest ready task has been due, by PostgreSQL's clock, whatever
	// its priority and attempts. 0 without a ready task.
	OldestReady time.Duration

	// NextRunAt is when the first scheduled or retrying task is due; zero without one. It is past
	// while no relay is at work.
	NextRunAt time.Time
}

const statsSQL = `/* outbox: stats */
` + counts.SQL + `
 ORDER BY c.task_type COLLATE "C"`

// Stats reads the counts of all task types that were ever enqueued, sorted by type, with one
// statement. The counts are exact for the statement's snapshot: they are what count(*) by type and
// state would say. Its cost does not depend on the number of tasks. It grows with the number of
// types, and with the changes since autovacuum last worked on counter_log: some milliseconds for 10
// MB of that table. Relays fold that table. While none runs, the cost grows with each change, so
// bound the call by ctx or the statement_timeout. It uses no parallel workers.
//
// q is a pool, a connection or a transaction. Stats reads only, so it may run on a standby. It needs
// SELECT on the tables counter, counter_log and task. Errors: ErrInvalidOption before any SQL is
// sent; any other is q's own, wrapped.
func Stats(ctx context.Context, q Querier, opts ...SchemaOption) ([]TypeStats, error) {
	schema, err := schemaOf(opts)
	if err != nil {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, strings.ReplaceAll(statsSQL, "outbox.", `"`+schema+`".`))
	if err != nil {
		return nil, fmt.Errorf("outbox: stats: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var out []TypeStats
	for rows.Next() {
		var s TypeStats
		var age, due sql.NullInt64
		if err := rows.Scan(&s.Type, &s.Ready, &s.Scheduled, &s.Retrying, &s.Leased, &s.Waiting, &s.Dead,
			&s.Finished, &s.Failed, &s.Expired, &age, &due); err != nil {
			return nil, fmt.Errorf("outbox: stats: %w", err)
		}
		s.OldestReady = time.Duration(age.Int64) * time.Microsecond
		if due.Valid {
			s.NextRunAt = time.UnixMicro(due.Int64)
		}
		out = append(out, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("outbox: stats: %w", err)
	}
	return out, nil
}
