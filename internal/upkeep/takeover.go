package upkeep

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// dead says that the relay of a row does not live. A row that lies further ahead than a beat gives
// was written while the server's clock was ahead: a living relay writes it anew with each beat.
const dead = `alive_until NOT BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 minutes'`

// $1: also leases of relays that have no row.
const takeOverDueSQL = `/* outbox: whether leases are to be taken over */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       EXISTS (SELECT 1 FROM outbox.relay l WHERE ` + dead + ` AND (taken_over_at IS NULL
       OR EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)))
    OR EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.leased_until < clock_timestamp())
    OR $1::boolean AND EXISTS (SELECT 1 FROM outbox.task t WHERE state = 'leased'
       AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id))`

// takeover is the job that makes leased tasks of dead relays ready again.
type takeover struct {
	Params
	streak     *streak
	strandedAt time.Time // when leases of relays without a row were looked for
}

// For each dead relay: whether its death is new, how many leases it holds, and how many of these
// tasks lost the run before this one, too.
const deadRelaysSQL = `/* outbox: lock dead relays */
SELECT relay_id::text, host, pid, taken_over_at IS NULL,
       (SELECT count(*) FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id) AS leases,
       (SELECT count(*) FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id
           AND t.timeline -> -1 ->> 'event' = 'lost') AS lost_before
  FROM outbox.relay l
 WHERE ` + dead + ` AND relay_id <> $1::uuid AND (taken_over_at IS NULL
    OR EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id))
 ORDER BY relay_id LIMIT 10 FOR UPDATE SKIP LOCKED`

const takenOverSQL = `/* outbox: note that relays are dead */
UPDATE outbox.relay SET taken_over_at = clock_timestamp(), alive_until = LEAST(alive_until, clock_timestamp()),
       progress = NULL
 WHERE relay_id = ANY ($1::uuid[])`

// freed is a task whose lease was lost, by the death of its relay or by its end: it is ready at once.
const freed = `state = 'ready', lease_token = NULL, leased_until = NULL`

// LostTimeline is the timeline of t with the lost run. A claim of a suspect that has not counted its
// attempt yet is no run.
const LostTimeline = `CASE
         WHEN t.timeline -> -1 @> jsonb_build_object('event', 'lost', 'attempt', t.attempt) THEN t.timeline
         ELSE outbox.add_events(t.timeline, jsonb_build_array(
                jsonb_build_object('event', 'lost', 'attempt', t.attempt, 'relay', t.relay_id))) END`

// lostRun is a LostRun.
const lostRun = `t.task_id, t.task_type, t.attempt`

// The relay's id stays on the row as a mark: the task's last run was lost.
const takeOverSQL = `/* outbox: take leases over from dead relays */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND relay_id = ANY ($1::uuid[])
   LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET relay_id = t.relay_id, ` + freed + `, timeline = ` + LostTimeline + `
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING ` + lostRun

// The relay's id goes: the relay may live, so the task is no suspect.
const leasesEndSQL = `/* outbox: end leases that ran out */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND leased_until < clock_timestamp()
   LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET ` + freed + `, relay_id = NULL,
       timeline = outbox.add_events(timeline, jsonb_build_array(
         jsonb_build_object('event', 'lease_lost', 'attempt', attempt, 'relay', relay_id)))
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

const StrandedSQL = `/* outbox: lock leases of relays that have no row */
SELECT task_id::text FROM outbox.task t WHERE state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id) LIMIT 1000 FOR UPDATE SKIP LOCKED`

// The lock may have come after a relay that is new had taken the lease: seen from here it has a
// row.
const TakeStrandedSQL = `/* outbox: take over leases of relays that have no row */
UPDATE outbox.task t SET ` + freed + `, timeline = ` + LostTimeline + `
 WHERE task_id = ANY ($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id)
RETURNING ` + lostRun

// Tasks that were asked to end while they were leased are removed in the transaction that ends their
// leases: no relay runs them again before it hears of the request.
// The requests go as relays hear of them.
const removeCanceledSQL = `/* outbox: remove canceled tasks whose lease has ended */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM outbox.cancel LIMIT 1000))
     AND state <> 'leased' FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING task_type)
INSERT INTO outbox.counter_log (tasks, task_type, kind)
SELECT count(*), task_type, 'canceled' FROM gone GROUP BY task_type`

// run makes the leased tasks of dead relays ready again, once this relay's own beats are
// settled.
func (t *takeover) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	now := t.Now()
	strandedToo := now.Sub(t.strandedAt) >= ReapInterval
	if !t.streak.settled(now) {
		return TakeoverInterval, nil
	}
	var clock int64
	var due bool
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		return conn.QueryRowContext(ctx, t.Schema.SQL(takeOverDueSQL), strandedToo).Scan(&clock, &due)
	})
	if err != nil {
		return 0, err
	}
	if t.streak.stepped(now, time.Until(time.UnixMicro(clock))) {
		return TakeoverInterval, nil
	}
	if !due {
		if strandedToo {
			t.strandedAt = now
		}
		return Interval, nil
	}
	var dead []deadRelay
	var lost []LostRun
	var others int64
	err = on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		lost, others = nil, 0
		if dead, err = t.deadRelays(ctx, tx); err != nil {
			return err
		}
		if len(dead) > 0 {
			ids := make([]string, len(dead))
			for i, r := range dead {
				ids[i] = r.id
			}
			if _, err = tx.ExecContext(ctx, t.Schema.SQL(takenOverSQL), pq.Array(ids)); err != nil {
				return err
			}
			if lost, err = t.free(ctx, tx, takeOverSQL, ids); err != nil {
				return err
			}
		}
		ended, err := tx.ExecContext(ctx, t.Schema.SQL(leasesEndSQL))
		if err != nil {
			return err
		}
		others, _ = ended.RowsAffected()
		if strandedToo {
			stranded, err := pg.Texts(tx.QueryContext(ctx, t.Schema.SQL(StrandedSQL)))
			if err == nil && len(stranded) > 0 {
				var freed []LostRun
				freed, err = t.free(ctx, tx, TakeStrandedSQL, stranded)
				lost, others = append(lost, freed...), others+int64(len(freed))
			}
			if err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, t.Schema.SQL(removeCanceledSQL))
		return err
	})
	if err != nil {
		return 0, err
	}
	if strandedToo {
		t.strandedAt = now
	}
	held := int64(0)
	for _, r := range dead {
		held += r.leases
		if r.isNew {
			t.Log.Warn("outbox: a relay is dead; its leased tasks are taken over", "relay", r.id, "host", r.host, "pid", r.pid,
				"tasks", r.leases, "isolated", r.isolated)
		}
	}
	if others > 0 {
		t.Log.Warn("outbox: leases that ran out are ended", "tasks", others)
	}
	if len(lost) > 0 {
		t.TookOver(lost)
	}
	if held+others > 0 {
		t.Ready()
	}
	return TakeoverInterval, nil
}

// LostRun is a run of a Leased task that was lost with its relay.
type LostRun struct {
	TaskID  int64
	Type    string
	Attempt int
}

// free makes leased tasks of these relays, or with these ids, ready, and returns their runs.
func (t *takeover) free(ctx context.Context, tx *sql.Tx, query string, ids []string) (lost []LostRun, err error) {
	rows, err := tx.QueryContext(ctx, t.Schema.SQL(query), pq.Array(ids))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r LostRun
		if err := rows.Scan(&r.TaskID, &r.Type, &r.Attempt); err != nil {
			return nil, err
		}
		lost = append(lost, r)
	}
	return lost, rows.Err()
}

// deadRelay is a relay whose leases are taken over.
type deadRelay struct {
	id, host         string
	pid              int
	isNew            bool // no relay has taken its leases over before
	leases, isolated int64
}

func (t *takeover) deadRelays(ctx context.Context, tx *sql.Tx) (dead []deadRelay, err error) {
	rows, err := tx.QueryContext(ctx, t.Schema.SQL(deadRelaysSQL), t.RelayID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r deadRelay
		if err := rows.Scan(&r.id, &r.host, &r.pid, &r.isNew, &r.leases, &r.isolated); err != nil {
			return nil, err
		}
		dead = append(dead, r)
	}
	return dead, rows.Err()
}
