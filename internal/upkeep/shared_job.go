package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// SharedJob is upkeep of the outbox's tables that one relay of all does at a time. To add one,
// write its Run in a file of its own and add it to SharedJobs: the table outbox.maintenance gets
// its row by itself. Then add it to
//   - ownTimes in relay/fault_test.go: a part of the comments of its statements
//   - doc.go
//   - docs/guide/production.md and docs/features.md
type SharedJob struct {
	Name string // the key in outbox.maintenance; a new name for a new meaning
	// Run does a bounded part of the job in tx, which sharedJobs commits; a tx of a job that is
	// done by several relays at once must do no harm either. It returns after how long any relay is
	// to do the next part: 0 is at once, which is within a second or two. What it logs must be true
	// even if the commit fails.
	Run func(ctx context.Context, in pg.Schema, log *slog.Logger, tx *sql.Tx) (next time.Duration, err error)
}

// SharedJobs are done by whichever relay gets to them. Each is bounded by partTimeout, as it
// shares the heartbeat's connection. Dead letters stay if deadRetention is not positive.
func SharedJobs(deadRetention time.Duration) []SharedJob {
	all := []SharedJob{
		{"fold", fold},
		{"purge history", purge(purgeDoneSQL)}, // also without a handler that keeps: rows may be from before
		{"purge inbox", purge(purgeInboxSQL)},
		{"sample", sample},
	}
	if deadRetention > 0 {
		all = append(all, SharedJob{"purge dead letters", purge(purgeDeadSQL, deadRetention.Microseconds())})
	}
	return all
}

// maxSharedWait is how long a relay does not check whether a shared job is due: another relay that
// had it may be dead.
const maxSharedWait = 30 * time.Second

// A log that is empty needs no fold. What is due further ahead than any job rests was written while
// the server's clock was ahead: it is due now.
const nextSharedSQL = `/* outbox: when maintenance is due */
SELECT count(*), (extract(epoch FROM
         min(CASE WHEN due_at <= clock_timestamp() + interval '1 hour' THEN due_at ELSE clock_timestamp() END)
           FILTER (WHERE job <> 'fold' OR EXISTS (SELECT 1 FROM outbox.counter_log))
         - clock_timestamp()) * 1000000)::bigint
  FROM outbox.maintenance WHERE job = ANY ($1::text[])`

const newSharedSQL = `/* outbox: jobs of maintenance */
INSERT INTO outbox.maintenance (job) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING
RETURNING ` + pg.CommitAsync

// The settings hold for the job's own statements.
const takeSharedSQL = `/* outbox: take a job of maintenance */
WITH s AS MATERIALIZED (
  SELECT job FROM outbox.maintenance
   WHERE job = ANY ($1::text[]) AND due_at NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '1 hour'
   ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
SELECT job FROM s WHERE set_config('statement_timeout', $2, true) || set_config('lock_timeout', $2, true)
       || set_config('idle_in_transaction_session_timeout', $3, true) || ` + pg.CommitAsync + ` IS NOT NULL`

const sharedDoneSQL = `/* outbox: a job of maintenance is done */
UPDATE outbox.maintenance SET due_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE job = $1`

// sharedJobs are those that one relay takes its part in.
type sharedJobs struct {
	Params
	rest    map[string]time.Time // until when this relay leaves a job to others, that it did not bring to its end
	refused map[string]error     // why PostgreSQL has refused the latest part of the job
}

// run does one part of the job that has been due for longest, if any is due that no other
// relay is at, and returns when to check again.
func (s *sharedJobs) run(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error) {
	for name, refused := range s.refused { // as another relay may do the job from now on
		if _, named := s.Refused(ctx, on, name, refused); !named {
			delete(s.refused, name)
			_, _ = s.Refused(ctx, on, name, nil)
		}
	}
	var names []string
	for _, j := range s.SharedJobs {
		if s.Now().After(s.rest[j.Name]) {
			names = append(names, j.Name)
		}
	}
	if len(names) == 0 {
		return TakeoverInterval, nil
	}
	var known int
	var in sql.NullInt64
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		read := func() error {
			return conn.QueryRowContext(ctx, s.Schema.SQL(nextSharedSQL), pq.Array(names)).Scan(&known, &in)
		}
		if err := read(); err != nil || known == len(names) {
			return err
		}
		if _, err := conn.ExecContext(ctx, s.Schema.SQL(newSharedSQL), pq.Array(names)); err != nil {
			return err
		}
		return read()
	})
	switch {
	case err != nil:
		return 0, err
	case !in.Valid:
		return maxSharedWait, nil
	case in.Int64 > 0:
		return min(max(time.Duration(in.Int64)*time.Microsecond, TakeoverInterval), maxSharedWait), nil
	}
	var taken []string
	var refused error // by PostgreSQL
	err = on.InBareTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		taken, err = pg.Texts(tx.QueryContext(ctx, s.Schema.SQL(takeSharedSQL),
			pq.Array(names), pg.Millis(partTimeout/2), pg.Millis(pg.Bookkeeping)))
		if err != nil || len(taken) == 0 {
			return err
		}
		isTaken := func(j SharedJob) bool { return j.Name == taken[0] }
		refused, err = s.do(ctx, tx, s.SharedJobs[slices.IndexFunc(s.SharedJobs, isTaken)])
		return err
	})
	switch {
	case len(taken) == 0:
	case err != nil:
		s.rest[taken[0]] = s.Now().Add(failedJobWait)
	case refused != nil:
		s.refused[taken[0]] = refused
	case s.refused[taken[0]] != nil:
		delete(s.refused, taken[0])
		_, _ = s.Refused(ctx, on, taken[0], nil)
	}
	return TakeoverInterval, err
}

// do runs a part of a job. One that PostgreSQL refuses is undone, and rests.
func (s *sharedJobs) do(ctx context.Context, tx *sql.Tx, j SharedJob) (refused, err error) {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT job"); err != nil {
		return nil, err
	}
	next, err := j.Run(ctx, s.Schema, s.Log, tx)
	if err != nil {
		s.Log.Debug("outbox: maintenance", "job", j.Name, "error", pgerr.LogText(err))
		if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT job"); err != nil {
			return nil, err // the connection is gone: another relay tries
		}
		next = failedJobWait
		if pgerr.Refusal(err) {
			refused = err
		}
	}
	_, err = tx.ExecContext(ctx, s.Schema.SQL(sharedDoneSQL), j.Name, next.Microseconds())
	return refused, err
}
