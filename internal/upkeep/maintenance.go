package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// MaintenanceJob is one kind of upkeep of the outbox's tables that one relay of all does at a time.
// To add one, write its run and add it to MaintenanceJobs; the table outbox.maintenance gets its
// row by itself.
type MaintenanceJob struct {
	Name string // the key in outbox.maintenance; a new name for a new meaning
	// Run does a bounded part of the job in tx, which maintenance commits; a tx of a job that is
	// done by several relays at once must do no harm either. It returns after how long any relay is
	// to do the next part: 0 is at once, which is within a second or two. What it logs must be true
	// even if the commit fails.
	Run func(ctx context.Context, in pg.Schema, log *slog.Logger, tx *sql.Tx) (next time.Duration, err error)
}

// MaintenanceJobs are done by whichever relay gets to them. Each is bounded by partTimeout, as it
// shares the heartbeat's connection. Dead letters stay if deadRetention is not positive.
func MaintenanceJobs(deadRetention time.Duration) []MaintenanceJob {
	jobs := []MaintenanceJob{
		{"fold", fold},
		{"bloat", Bloat{bloatDead, bloatBehind, bloatSnapshot}.Check},
		{"purge history", purgeDone},
		{"sample", sample},
	}
	if deadRetention > 0 {
		jobs = append(jobs, MaintenanceJob{"purge dead letters", purgeDead(deadRetention)})
	}
	return jobs
}

// maxMaintenanceWait is how long a relay does not check whether a job is due: another one that had
// it may be dead.
const maxMaintenanceWait = 10 * time.Second

// A log that is empty needs no fold.
const nextJobSQL = `/* outbox: when maintenance is due */
SELECT count(*), (extract(epoch FROM min(due_at) FILTER (WHERE job <> 'fold' OR EXISTS (SELECT 1 FROM outbox.counter_log))
                                     - clock_timestamp()) * 1000000)::bigint
  FROM outbox.maintenance WHERE job = ANY ($1::text[])`

const newJobsSQL = `/* outbox: jobs of maintenance */
INSERT INTO outbox.maintenance (job) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`

// The settings hold for the job's own statements.
const takeJobSQL = `/* outbox: take a job of maintenance */
WITH s AS MATERIALIZED (
  SELECT job FROM outbox.maintenance WHERE job = ANY ($1::text[]) AND due_at <= clock_timestamp() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
SELECT job FROM s WHERE set_config('statement_timeout', $2, true) || set_config('lock_timeout', $2, true)
       || set_config('idle_in_transaction_session_timeout', $3, true) IS NOT NULL`

const jobDoneSQL = `/* outbox: a job of maintenance is done */
UPDATE outbox.maintenance SET due_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE job = $1`

// maintenance is the job that does those of one relay.
type maintenance struct {
	schema pg.Schema
	log    *slog.Logger
	now    func() time.Time
	jobs   []MaintenanceJob
	known  bool                 // they have rows
	rest   map[string]time.Time // until when this relay leaves a job to others, that it did not bring to its end
}

func newMaintenance(in pg.Schema, log *slog.Logger, now func() time.Time, jobs []MaintenanceJob) *maintenance {
	return &maintenance{schema: in, log: log, now: now, jobs: jobs, rest: map[string]time.Time{}}
}

// run does one part of the job that has been due for longest, if any is due that no other
// relay is at, and returns when to check again.
func (m *maintenance) run(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error) {
	var names []string
	for _, s := range m.jobs {
		if m.now().After(m.rest[s.Name]) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return TakeoverInterval, nil
	}
	if !m.known {
		err := on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, m.schema.SQL(newJobsSQL), pq.Array(names))
			return err
		})
		if err != nil {
			return 0, err
		}
		m.known = true
	}
	var known int
	var in sql.NullInt64
	err = on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return conn.QueryRowContext(ctx, m.schema.SQL(nextJobSQL), pq.Array(names)).Scan(&known, &in)
	})
	m.known = known >= len(names) // else somebody has emptied the table
	if err != nil || !m.known {
		return TakeoverInterval, err
	}
	if !in.Valid {
		return maxMaintenanceWait, nil
	}
	if in.Int64 > 0 {
		return min(max(time.Duration(in.Int64)*time.Microsecond, TakeoverInterval), maxMaintenanceWait), nil
	}
	var taken []string
	err = begin(ctx, on, func(ctx context.Context, tx *sql.Tx) error {
		if taken, err = pg.Texts(tx.QueryContext(ctx, m.schema.SQL(takeJobSQL), pq.Array(names), pg.Millis(partTimeout/2), pg.Millis(pg.Bookkeeping))); err != nil || len(taken) == 0 {
			return err
		}
		for _, s := range m.jobs {
			if s.Name == taken[0] {
				return m.do(ctx, tx, s)
			}
		}
		return nil
	})
	if err != nil && len(taken) > 0 {
		m.rest[taken[0]] = m.now().Add(failedJobWait)
	}
	return TakeoverInterval, err
}

// do runs a part of a job. One that PostgreSQL refuses is undone, and rests.
func (m *maintenance) do(ctx context.Context, tx *sql.Tx, s MaintenanceJob) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT job"); err != nil {
		return err
	}
	next, err := s.Run(ctx, m.schema, m.log, tx)
	if err != nil {
		m.log.Debug("outbox: maintenance", "job", s.Name, "error", pgerr.LogText(err))
		if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT job"); err != nil {
			return err // the connection is gone: another relay tries
		}
		next = failedJobWait
	}
	_, err = tx.ExecContext(ctx, m.schema.SQL(jobDoneSQL), s.Name, next.Microseconds())
	return err
}
