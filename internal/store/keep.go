package store

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// A task that is there already was finished before, say before a failover brought it back.
const keepInsert = `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority, attempt, task_type, payload, headers, last_error, timeline)`

// maxKeepText is how long a text of statements may be; a server takes 1 GiB.
const maxKeepText = 16 << 20

// KeepTasks are the statements that write tasks that are done to the history, in the transaction
// that removes them, for them to stay there for the given time; none for 0. They have no
// parameters, so that they travel with others. So pg_stat_activity shows these payloads.
func (s *Store) KeepTasks(keep time.Duration, done []*Row) (statements []string) {
	if keep == 0 || len(done) == 0 {
		return nil
	}
	head := "/* outbox: keep */ " + s.SQL(keepInsert) + " SELECT task_id, timestamptz 'epoch' + run_at * interval '1 microsecond', timestamptz 'epoch' + created_at * interval '1 microsecond'," +
		" COALESCE(timestamptz 'epoch' + began * interval '1 microsecond', now()), clock_timestamp(), clock_timestamp() + " + strconv.FormatInt(keep.Microseconds(), 10) + " * interval '1 microsecond', priority, attempt, " +
		pq.QuoteLiteral(done[0].TaskType) + ", payload::jsonb, headers::jsonb, last_error, timeline FROM (VALUES "
	const tail = ") AS done (task_id, run_at, created_at, priority, attempt, began, payload, headers, last_error, timeline) ON CONFLICT (task_id) DO NOTHING"
	var b strings.Builder
	for _, t := range done {
		values := s.literals(t)
		switch {
		case b.Len() == 0:
			b.WriteString(head)
		case b.Len()+len(values) > maxKeepText/2:
			statements = append(statements, b.String()+tail)
			b.Reset()
			b.WriteString(head)
		default:
			b.WriteByte(',')
		}
		b.WriteString(values)
	}
	return append(statements, b.String()+tail)
}

// literals are the values of a task for the history.
func (s *Store) literals(r *Row) string {
	var b strings.Builder
	b.WriteByte('(')
	for _, n := range []int64{r.ID, r.RunAt, r.createdAt, int64(r.Priority), int64(min(r.Begun(), math.MaxInt16))} {
		b.WriteString(strconv.FormatInt(n, 10) + "::bigint,")
	}
	began, headers, discarded := "NULL::bigint", "NULL::text", "NULL::text"
	if r.Began != nil {
		began = strconv.FormatInt(*r.Began, 10)
	}
	if r.headers != nil {
		headers = pq.QuoteLiteral(*r.headers)
	}
	if r.Discarded != nil {
		discarded = pq.QuoteLiteral(pgerr.Text(r.Discarded))
	}
	b.WriteString(began + "," + pq.QuoteLiteral(r.Payload) + "," + headers + "," + discarded + "," + s.timelineLiteral(r) + ")")
	return b.String()
}

// timelineLiteral is the timeline of a task that is done.
func (s *Store) timelineLiteral(r *Row) string {
	text := "NULL"
	if r.timeline != nil {
		text = pq.QuoteLiteral(*r.timeline)
	}
	text += "::jsonb"
	if r.Lost == 0 {
		return text
	}
	living, _ := pq.Array(nonNil(r.Undecided)).Value()
	lost := s.SQL("outbox.lost_runs(") + strconv.FormatInt(r.ID, 10) + ", " + strconv.Itoa(r.Attempt) + ", " + pq.QuoteLiteral(living.(string)) + ", " + pq.QuoteLiteral(s.RelayID) + ")"
	return s.SQL("outbox.add_events(") + text + ", COALESCE(" + lost + ", '[]'))" // text may have the schema's name in it
}

const CompleteAndKeepSQL = `/* outbox: complete leased tasks and keep them */
WITH gone AS (
  DELETE FROM outbox.task t
   WHERE t.task_id = ANY (ARRAY(SELECT unnest($1::bigint[]))) AND t.lease_token = ($2::uuid[])[width_bucket(t.task_id, $1::bigint[])]
  RETURNING t.*, ($3::bigint[])[width_bucket(t.task_id, $1::bigint[])] AS keep, ($4::text[])[width_bucket(t.task_id, $1::bigint[])] AS discarded),
kept AS (
  ` + keepInsert + `
  SELECT task_id, run_at, created_at, attempted_at, clock_timestamp(), clock_timestamp() + keep * interval '1 microsecond', priority, attempt, task_type, payload, headers, discarded, timeline
    FROM gone WHERE keep > 0
  ON CONFLICT (task_id) DO NOTHING)
SELECT task_id FROM gone`
