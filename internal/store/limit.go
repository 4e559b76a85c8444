package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// Limits that are stored already are not written again, and their locks not waited for. With $5
// only missing limits are stored: after a restore, say. Each group key with tasks that wait gets a request,
// as there may be more places now: two index probes for each key.
const storeLimitsSQL = `/* outbox: store the limits of types */
WITH RECURSIVE stored AS (
INSERT INTO outbox.task_type AS t (task_type, max_running, max_running_per_key, rate, rate_per)
SELECT l.task_type, NULLIF(l.max_running, 0), NULLIF(l.per_key, 0), NULLIF(l.rate, 0), NULLIF(l.rate_per, 0)
  FROM unnest($1::text[], $2::integer[], $3::integer[], $4::bigint[], $6::integer[])
    AS l (task_type, max_running, rate, rate_per, per_key)
 WHERE NOT EXISTS (
    SELECT 1 FROM outbox.task_type s WHERE s.task_type = l.task_type
       AND (l.max_running = 0 OR s.max_running = l.max_running OR $5::boolean AND s.max_running > 0)
       AND (l.per_key = 0 OR s.max_running_per_key = l.per_key OR $5::boolean AND s.max_running_per_key > 0)
       AND (l.rate = 0 OR s.rate = l.rate AND s.rate_per = l.rate_per OR $5::boolean AND s.rate > 0))
 ORDER BY l.task_type
ON CONFLICT (task_type) DO UPDATE SET max_running = COALESCE(EXCLUDED.max_running, t.max_running),
   max_running_per_key = COALESCE(EXCLUDED.max_running_per_key, t.max_running_per_key),
   rate = COALESCE(EXCLUDED.rate, t.rate), rate_per = COALESCE(EXCLUDED.rate_per, t.rate_per)
RETURNING t.task_type, t.max_running_per_key),
waiting AS (
  SELECT s.task_type, (SELECT t.group_key FROM outbox.task t
           WHERE t.task_type = s.task_type AND t.group_key IS NOT NULL AND t.state = 'waiting'
           ORDER BY t.task_type, t.group_key LIMIT 1) AS group_key
    FROM stored s WHERE s.max_running_per_key > 1
   UNION ALL
  SELECT w.task_type, (SELECT t.group_key FROM outbox.task t
           WHERE t.task_type = w.task_type AND t.group_key > w.group_key AND t.state = 'waiting'
           ORDER BY t.task_type, t.group_key LIMIT 1)
    FROM waiting w WHERE w.group_key IS NOT NULL)
INSERT INTO outbox.place_request (task_type, group_key)
SELECT task_type, group_key FROM waiting WHERE group_key IS NOT NULL`

const storeSlotsSQL = `/* outbox: store the slots of types */
INSERT INTO outbox.slot (task_type, slot)
SELECT l.task_type, n
  FROM unnest($1::text[], $2::integer[]) AS l (task_type, max_running), generate_series(1, l.max_running) AS n
 WHERE NOT EXISTS (SELECT 1 FROM outbox.slot s WHERE s.task_type = l.task_type AND s.slot = n)
 ORDER BY l.task_type, n
ON CONFLICT DO NOTHING`

const storeBucketsSQL = `/* outbox: store the buckets of types */
INSERT INTO outbox.bucket (task_type)
SELECT task_type FROM unnest($1::text[], $2::integer[]) AS l (task_type, rate)
 WHERE rate > 0 AND NOT EXISTS (SELECT 1 FROM outbox.bucket b WHERE b.task_type = l.task_type)
 ORDER BY task_type
ON CONFLICT DO NOTHING`

// Limit is what a type is limited to in all relays.
type Limit struct {
	TaskType                     string
	MaxRunning, MaxRunningPerKey int
	Rate                         int
	RatePer                      time.Duration
}

// StoreLimits stores limits of types, or only what is missing of them. Without limits it does
// nothing.
func (s *Store) StoreLimits(ctx context.Context, tx Execer, of []Limit, missing bool) error {
	var types []string
	var slots, perKeys, counts, pers []int64
	for _, l := range of {
		types, slots = append(types, l.TaskType), append(slots, int64(l.MaxRunning))
		perKeys = append(perKeys, int64(l.MaxRunningPerKey))
		counts, pers = append(counts, int64(l.Rate)), append(pers, l.RatePer.Microseconds())
	}
	if types == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, s.SQL(storeLimitsSQL),
		pq.Array(types), pq.Array(slots), pq.Array(counts), pq.Array(pers), missing, pq.Array(perKeys))
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, s.SQL(storeSlotsSQL), pq.Array(types), pq.Array(slots)); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, s.SQL(storeBucketsSQL), pq.Array(types), pq.Array(counts))
	return err
}

// A slot is free unless the lease that it names still lasts. The lock may come after another claim
// has filled the slot, with a lease that this statement does not see; so a slot that has changed
// since it was seen is no good.
const lockSlotsSQL = `/* outbox: lock slots of a type */
WITH free AS MATERIALIZED (
  SELECT slot, lease_token FROM outbox.slot s
   WHERE task_type = $1 AND slot <= (SELECT max_running FROM outbox.task_type WHERE task_type = $1)
     AND (lease_token IS NULL OR
         (SELECT t.lease_token FROM outbox.task t WHERE t.task_id = s.task_id) IS DISTINCT FROM s.lease_token)),
locked AS MATERIALIZED (
  SELECT s.slot FROM outbox.slot s JOIN free f ON f.slot = s.slot AND f.lease_token IS NOT DISTINCT FROM s.lease_token
   WHERE s.task_type = $1 LIMIT $2 FOR UPDATE OF s SKIP LOCKED)
SELECT slot, set_config('idle_in_transaction_session_timeout', $3, true), set_config('lock_timeout', $3, true)
  FROM locked`

// LockSlots locks up to limit free slots of a type until the end of tx. A Tx or Batch claim
// writes nothing into its slot: the end of its transaction, however it comes, frees the slot.
func (s *Store) LockSlots(ctx context.Context, taskType string, tx *sql.Tx, limit int) (slots []int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pg.StatementTimeout)
	defer cancel()
	rows, err := tx.QueryContext(ctx, s.SQL(lockSlotsSQL), taskType, limit, pg.Millis(pg.Bookkeeping))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var slot int64
		var ignored string
		if err := rows.Scan(&slot, &ignored, &ignored); err != nil {
			return nil, err
		}
		slots = append(slots, slot)
	}
	return slots, errors.Join(rows.Err(), rows.Close())
}

const fillSlotsSQL = `/* outbox: fill slots with leases */
UPDATE outbox.slot s SET task_id = f.task_id, lease_token = $4::uuid
  FROM unnest($2::integer[], $3::bigint[]) AS f (slot, task_id)
 WHERE s.task_type = $1 AND s.slot = f.slot`

// FillSlots gives each leased task one of the locked slots for as long as its lease lasts.
func (s *Store) FillSlots(ctx context.Context, taskType string, tx *sql.Tx, slots []int64, rows []*Row,
	token string) error {
	if len(slots) == 0 || len(rows) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, s.SQL(fillSlotsSQL), taskType, pq.Array(slots[:len(rows)]), pq.Array(IDs(rows)), token)
	return err
}
