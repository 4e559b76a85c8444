package store

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const keepSQL = `/* outbox: keep */
SELECT outbox.keep($1::jsonb, $2, $3::uuid)`

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
		tasks, err := json.Marshal(finishedRows(done[:n]))
		if err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, s.SQL(keepSQL), string(tasks), keep.Microseconds(), s.RelayID); err != nil {
			return err
		}
		done = done[n:]
	}
	return nil
}

func finishedRows(done []*Row) []map[string]any {
	out := make([]map[string]any, len(done))
	for i, r := range done {
		changes := map[string]any{"attempt": min(r.Begun(), math.MaxInt16), "began_us": r.Began, "last_error": nil}
		if r.Discarded != nil {
			changes["last_error"] = pgerr.Text(r.Discarded)
		}
		if r.Lost > 0 { // the journal has these runs
			changes["living"], changes["claimed_attempt"] = nonNil(r.Undecided), r.Attempt
		}
		out[i] = r.handedBack(changes)
	}
	return out
}

// CompleteAndKeepSQL deletes leased tasks, and writes those to the history whose time there is not 0.
const CompleteAndKeepSQL = `/* outbox: complete leased tasks and keep them */
WITH gone AS (
  DELETE FROM outbox.task t
   WHERE t.task_id = ANY (ARRAY(SELECT unnest($1::bigint[]))) AND t.lease_token = ($2::uuid[])[width_bucket(t.task_id, $1::bigint[])]
  RETURNING t.task_id, to_jsonb(t) - '{leased_until,relay_id,lease_token}'::text[] AS task,
            ($3::bigint[])[width_bucket(t.task_id, $1::bigint[])] AS keep,
            NULLIF(($4::text[])[width_bucket(t.task_id, $1::bigint[])], '') AS discarded),
kept AS (
  INSERT INTO outbox.done_task
  SELECT d.* FROM gone CROSS JOIN LATERAL outbox.row_of(NULL::outbox.done_task, gone.task || jsonb_build_object(
         'state', 'finished', 'finished_at', clock_timestamp(), 'keep_until', clock_timestamp() + gone.keep * interval '1 microsecond',
         'last_error', gone.discarded),
         (SELECT outbox.lacking('outbox.done_task', task || '{"finished_at": null, "keep_until": null}') FROM gone LIMIT 1)) AS d
   WHERE gone.keep > 0
  ON CONFLICT (task_id) DO NOTHING)
SELECT task_id FROM gone`
