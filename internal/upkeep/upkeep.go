// Package upkeep is what a relay does beside its tasks: it says that it lives, and looks after what
// all relays share.
//
//	Heartbeat  beats every 3 s; between two beats it does due jobs, on the same connection
//	Job        each relay does it: take over, reap, sweep keys, report unhandled types, those of the
//	           relay's other parts, and maintain, which does the shared jobs
//	SharedJob  one relay of all does it, when its row in outbox.maintenance is due: fold,
//	           purge history, purge inbox, purge dead letters, sample
//
// All of it commits asynchronously, so no beat waits for the disk or a synchronous standby: each is
// done again if a crash of the server loses it. What must be durable, as a result, a claim of a Tx
// task or the firing of a schedule, goes over other connections.
//
// A relay claims only while its latest beat is younger than LeaseDuration. It takes over from
// others only after unbroken beats of that length, as after an outage all relays look dead:
//
//	started --beats for 10 s--> settled --a gap or a restore--> started
//	alive   --10 s without a beat--> not alive: leased handlers end, nothing is claimed --a beat--> alive
package upkeep

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Params are what a Heartbeat needs of its relay.
type Params struct {
	RelayID, Host string
	PID           int
	Types         []string // that have a handler
	Workers       int
	Schedules     string // the definition of each by name, as JSON
	Limits        string // of each type, as JSON: see admin.Client.Why
	Parses        bool   // it fires stored schedules
	Environment   string // of the relay's Config
	Schema        pg.Schema
	Pool          *pg.Pool
	Pace          pg.Pace
	Log           *slog.Logger
	Now           func() time.Time        // time.Now
	Jobs          []Job                   // of the relay's other parts
	SharedJobs    []SharedJob             // of all relays
	Lost          func() (handlers int)   // ends the leased handlers, as the leases have run out
	Ready         func()                  // wakes the dispatcher after a takeover
	TookOver      func([]LostRun)         // leased runs of dead relays, after a takeover
	Looked        func(time.Duration)     // by each beat: for how long somebody looks, by outbox tail
	Identified    func(databaseID string) // by each beat
	Copied        func(err error)         // the database is a copy: the run is to end
	Refused       refusedFunc
	Last          func(context.Context, *pg.Dedicated) // after the sign-off, in what is left of its time
}

const (
	// Interval is the time between two beats.
	Interval = 3 * time.Second
	// LeaseDuration is for how long a relay is alive after each beat.
	LeaseDuration = 10 * time.Second
	// TakeoverInterval is the least time between two takeovers. Without leases to be taken over a
	// relay looks for some once in Interval.
	TakeoverInterval = time.Second
	// TakenOverWithin is from a relay's death to the takeover by a relay that is up and not busy.
	TakenOverWithin = LeaseDuration + Interval + 2*TakeoverInterval
	// ReapInterval is how often a relay looks after what nobody needs any more.
	ReapInterval = 30 * time.Second

	takeoverAfter = 10 * time.Second // own unbroken beats before taking over from others
	// beatGap is what breaks them. Another relay's last beat before an outage may be an interval
	// older than the own, and its lease must not have run out when the own outage counts as none.
	beatGap = Interval + 2*TakeoverInterval

	partTimeout   = 1500 * time.Millisecond // of each part of a job, so that no beat is late
	refusedRest   = 10 * time.Second        // of a job that PostgreSQL refused: the others go on
	failedJobWait = 10 * time.Second        // of a shared job that PostgreSQL refused
)

// Job is upkeep that each relay does now and then, on the connection of its heartbeat.
type Job struct {
	Name string
	// Run does a part of the job that is bounded by its context, and says when the next one is due.
	Run func(ctx context.Context, on *pg.Dedicated) (wait time.Duration, err error)
}

// refusedFunc hears which part of the upkeep PostgreSQL refuses; nil: no more. It may use on. It
// adds the reason to the error, and reports whether it found and logged one.
type refusedFunc func(ctx context.Context, on *pg.Dedicated, part string, err error) (explained error, named bool)

// jobs are those of one relay. At least one is there.
type jobs struct {
	now     func() time.Time
	log     *slog.Logger
	refused refusedFunc
	all     []*dueJob
}

type dueJob struct {
	Job
	at      time.Time
	refused bool // PostgreSQL has refused the latest part, and the log knows
}

func newJobs(now func() time.Time, log *slog.Logger, refused refusedFunc, of []Job) jobs {
	j := jobs{now: now, log: log, refused: refused}
	for _, one := range of {
		j.all = append(j.all, &dueJob{Job: one})
	}
	return j
}

// work does due jobs until the next beat is due, the job that has been due for longest first. The
// error is that of a lost connection.
func (j *jobs) work(ctx context.Context, on *pg.Dedicated, nextBeat time.Time) error {
	for j.now().Before(nextBeat) && ctx.Err() == nil {
		next := j.next()
		if next.at.After(j.now()) {
			return nil
		}
		if err := j.do(ctx, on, next); err != nil {
			return err
		}
	}
	return nil
}

// next is the one that has been due for longest, or will be due first.
func (j *jobs) next() *dueJob {
	next := j.all[0]
	for _, other := range j.all {
		if other.at.Before(next.at) {
			next = other
		}
	}
	return next
}

func (j *jobs) doNamed(ctx context.Context, on *pg.Dedicated, name string) (rest time.Duration, err error) {
	for _, one := range j.all {
		if one.Name == name {
			err = j.do(ctx, on, one)
			return one.at.Sub(j.now()), err
		}
	}
	return 0, fmt.Errorf("relay: there is no job %q", name)
}

func (j *jobs) do(ctx context.Context, on *pg.Dedicated, one *dueJob) error {
	bounded, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	wait, err := one.Run(bounded, on)
	if err == nil {
		if one.refused {
			_, _ = j.refused(ctx, on, one.Name, nil)
		}
		one.at, one.refused = j.now().Add(wait), false
		return nil
	}
	one.at = j.now().Add(TakeoverInterval)
	if pgerr.Code(err) == "" || pgerr.Lost(err) {
		return err
	}
	if pgerr.Passing(err) {
		j.log.Debug("outbox: upkeep", "job", one.Name, "error", pgerr.LogText(err))
		return nil
	}
	one.at = j.now().Add(refusedRest)
	_, named := j.refused(ctx, on, one.Name, err)
	switch {
	case named: // it goes on soon after it is mended
		one.at = j.now().Add(Interval)
	case !one.refused:
		j.log.Warn("outbox: PostgreSQL refuses a job of the relay's upkeep; it is tried again",
			"job", one.Name, "error", pgerr.LogText(err))
	}
	one.refused = true
	return nil
}

// SharedJob is upkeep of the outbox's tables that one relay of all does at a time. To add one,
// write its Run in shared_jobs.go and add it to SharedJobs: the table outbox.maintenance gets
// its row by itself. Then add it to
//   - ownTimes in relay/fault_test.go: a part of the comments of its statements
//   - the package comment above
//   - docs/guide/production.md and docs/coverage.md
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
