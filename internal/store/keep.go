package store

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// A task that is there already was finished before, say before a failover brought it back.
const keepInsert = `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority, attempt, task_type, payload, headers, last_error, timeline)`

const keepSQL = `/* outbox: keep */
` + keepInsert + `
SELECT d.task_id, timestamptz 'epoch' + d.run_at * interval '1 microsecond',
       timestamptz 'epoch' + d.created_at * interval '1 microsecond',
       COALESCE(timestamptz 'epoch' + NULLIF(d.began, 0) * interval '1 microsecond', now()), clock_timestamp(),
       clock_timestamp() + $3::bigint * interval '1 microsecond',
       d.priority, d.attempt, $1::text, d.payload::jsonb, NULLIF(d.headers, '')::jsonb, NULLIF(d.error, ''),
       CASE WHEN d.living = '' THEN NULLIF(d.timeline, '')::jsonb
       ELSE outbox.add_events(NULLIF(d.timeline, '')::jsonb, COALESCE(
         outbox.lost_runs(d.task_id, d.claimed_attempt, d.living::uuid[], $2::uuid), '[]')) END
  FROM unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::integer[], $9::integer[],
         $10::integer[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
       AS d (task_id, run_at, created_at, began, priority, attempt,
         claimed_attempt, payload, headers, error, timeline, living)
ON CONFLICT (task_id) DO NOTHING`

// maxKeepText is how long the payloads of one statement may be together; a server takes 1 GiB.
const maxKeepText = 8 << 20

// Keep writes tasks that are done to the history, in the transaction that removes them, for them to
// stay there for the given time.
func (s *Store) Keep(ctx context.Context, c pg.Exclusive, keep time.Duration, done []*Row) error {
	for len(done) > 0 {
		n, size := 1, len(done[0].Payload)
		for n < len(done) && size+len(done[n].Payload) <= maxKeepText {
			size += len(done[n].Payload)
			n++
		}
		if _, err := c.ExecContext(ctx, s.SQL(keepSQL), s.keepArgs(keep, done[:n])...); err != nil {
			return err
		}
		done = done[n:]
	}
	return nil
}

func (s *Store) keepArgs(keep time.Duration, done []*Row) []any {
	n := len(done)
	ids, runAt, createdAt, began := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	priorities, attempts, claimed := make([]int64, n), make([]int64, n), make([]int64, n)
	// Zeros and empty texts are NULL in SQL: in arrays NULL has no meaning while array_nulls is off.
	payloads, headers, discarded := make([]string, n), make([]string, n), make([]string, n)
	timelines, living := make([]string, n), make([]string, n)
	for i, r := range done {
		ids[i], runAt[i], createdAt[i], began[i] = r.ID, r.RunAt, r.createdAt, orZero(r.Began)
		priorities[i], attempts[i], claimed[i] = int64(r.Priority), int64(min(r.Begun(), math.MaxInt16)), int64(r.Attempt)
		payloads[i], headers[i], timelines[i] = r.Payload, orZero(r.headers), orZero(r.timeline)
		if r.Discarded != nil {
			discarded[i] = pgerr.Text(r.Discarded)
		}
		if r.Lost > 0 { // the journal has these runs
			living[i] = "{" + strings.Join(r.Undecided, ",") + "}"
		}
	}
	return []any{done[0].TaskType, s.RelayID, keep.Microseconds(),
		pq.Array(ids), pq.Array(runAt), pq.Array(createdAt), pq.Array(began),
		pq.Array(priorities), pq.Array(attempts), pq.Array(claimed),
		pq.Array(payloads), pq.Array(headers), pq.Array(discarded), pq.Array(timelines), pq.Array(living)}
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

const CompleteAndKeepSQL = `/* outbox: complete leased tasks and keep them */
WITH gone AS (
  DELETE FROM outbox.task t
   WHERE t.task_id = ANY (ARRAY(SELECT unnest($1::bigint[]))) AND t.lease_token = ($2::uuid[])[width_bucket(t.task_id, $1::bigint[])]
  RETURNING t.*, ($3::bigint[])[width_bucket(t.task_id, $1::bigint[])] AS keep, NULLIF(($4::text[])[width_bucket(t.task_id, $1::bigint[])], '') AS discarded),
kept AS (
  ` + keepInsert + `
  SELECT task_id, run_at, created_at, attempted_at, clock_timestamp(), clock_timestamp() + keep * interval '1 microsecond', priority, attempt, task_type, payload, headers, discarded, timeline
    FROM gone WHERE keep > 0
  ON CONFLICT (task_id) DO NOTHING)
SELECT task_id FROM gone`
