package relay

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/schema"
)

// Which lanes have work, and when the next scheduled task of each is due. What this process runs
// itself is still visible until its claim commits, and left out.
const pollSQL = `/* outbox: poll */
SELECT i, task_id, priority, attempt, age, due_in FROM outbox.poll($1, $2, $3, $4, $5, $6, $7, $8)`

// The last task of each head's priority and attempt, for the range of a pivot. The row comparison
// makes the planner read the lane's index backwards, where equality would tempt it to the primary
// key.
const lastSQL = `/* outbox: poll the ends of lanes */
SELECT h.i, l.task_id
  FROM unnest($1::text[], $2::smallint[], $3::smallint[]) WITH ORDINALITY AS h (task_type, priority, attempt, i)
 CROSS JOIN LATERAL (
    SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = h.task_type
       AND (priority, attempt, task_id) <= (h.priority, h.attempt, 9223372036854775807)
     ORDER BY priority DESC, attempt DESC, task_id DESC LIMIT 1) l`

// NO KEY UPDATE is enough, and lets others read the row.
const promoteScheduledSQL = `/* outbox: promote scheduled tasks */
WITH due AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'scheduled' AND task_type = $1 AND run_at <= now()
   ORDER BY run_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready' WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM due)) AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// One poll promotes only so many scheduled tasks, as others wait for what it sees. The next one
// goes on.
const (
	promoteScheduledTypes = 50
	promoteScheduledTasks = 1000
)

const strandedLeasesSQL = `/* outbox: find leases of dead relays */
SELECT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased'
   AND (t.leased_until < clock_timestamp() OR NOT EXISTS (
     SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id AND l.alive_until > clock_timestamp())))`

// poller reads what there is to do.
type poller struct {
	*store.Store
	types   []string
	random  bool
	running func() []int64 // tasks inside open claims
}

// pollResult is the result of a poll.
type pollResult struct {
	heads        []*plan.Head  // by the index of the lane
	took         time.Duration // to read the lanes
	nextDue      time.Duration
	headsMissing bool  // some ordering key may have no head
	due          bool  // some task is scheduled: nextDue holds
	wakeRequest  int64 // that was set; 0 if none
	// stranded: dead relays hold leases. Only read when asked.
	stranded bool
	// refused are the types whose scheduled tasks could not be promoted, headsRefused why no head of
	// an ordering key could: by a trigger of the app's, say.
	refused      map[string]error
	headsRefused error
}

// pollOptions are what a poll does besides.
type pollOptions struct {
	writable      bool          // see first whether the server takes writes
	requestWakeUp time.Duration // for so long; 0 for not
	withdraw      int64         // a wake-up request; 0 for none
	stranded      bool          // find leases of dead relays
	spans         [][]plan.Span // by the index of the lane, those to read; nil is all lanes from their heads
	// resting is for how long what is due of a type is not promoted, as PostgreSQL has refused that.
	resting map[string]time.Duration
}

// poll reads the heads of the lanes, promotes what is due first, and requests wake-ups before it
// reads, if it should: what commits later sends a notification then.
func (p *poller) poll(ctx context.Context, opts pollOptions) (s *pollResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	conn, err := p.Conns.Get(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pg.Drop(conn)
			return
		}
		p.Conns.Put(conn)
	}()
	if opts.writable {
		if err = schema.CheckWritable(ctx, conn); err != nil {
			return nil, err
		}
	}
	var wakeRequest int64
	if opts.withdraw > 0 {
		err = p.WithdrawWakeUp(ctx, conn, opts.withdraw)
	} else if opts.requestWakeUp > 0 {
		wakeRequest, err = p.RequestWakeUp(ctx, conn, opts.requestWakeUp)
	}
	if err != nil {
		return nil, err
	}
	stranded := false
	if opts.stranded { // before the lanes are read, so that what is taken over in between is seen there
		if err = conn.QueryRowContext(ctx, p.SQL(strandedLeasesSQL)).Scan(&stranded); err != nil {
			return nil, err
		}
	}
	s, due, err := p.readLanes(ctx, conn, opts)
	if err == nil && (len(due) > 0 || s.headsMissing) {
		promoted := 0
		if s.headsMissing {
			if promoted, err = p.PromoteHeads(ctx, conn); err != nil && !pgerr.Refusal(err) {
				return nil, err
			}
		}
		headsRefused, refused := err, map[string]error{}
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
		due = due[:min(len(due), promoteScheduledTypes)]
		for _, taskType := range due {
			_, err := conn.ExecContext(ctx, p.SQL(promoteScheduledSQL), taskType, promoteScheduledTasks/len(due))
			if pgerr.Refusal(err) { // others go on
				refused[taskType] = err
			} else if err != nil {
				return nil, err
			}
		}
		s, _, err = p.readLanes(ctx, conn, opts)
		s.refused, s.headsRefused = refused, headsRefused
		if len(refused) > 0 && len(refused) == len(due) {
			s.nextDue = max(s.nextDue, restMost)
		}
		if err == nil && s.headsMissing && headsRefused == nil {
			s.due, s.nextDue = true, 0 // the rest, soon
			if promoted == 0 {
				s.nextDue = store.PromotePause
			}
		}
	}
	if err != nil {
		return nil, err
	}
	s.wakeRequest, s.stranded = wakeRequest, stranded
	if p.random {
		err = p.readLast(ctx, conn, s.heads)
	}
	return s, err
}

// readLast reads the last task of each lane that has a head.
func (p *poller) readLast(ctx context.Context, conn *sql.Conn, heads []*plan.Head) error {
	var of []*plan.Head
	var types []string
	var priorities, attempts []int64
	for i, h := range heads {
		if h != nil {
			of, types = append(of, h), append(types, p.types[i])
			priorities, attempts = append(priorities, int64(h.Priority)), append(attempts, int64(h.Attempt))
		}
	}
	if len(of) == 0 {
		return nil
	}
	rows, err := conn.QueryContext(ctx, p.SQL(lastSQL), pq.Array(types), pq.Array(priorities), pq.Array(attempts))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i int
		var id int64
		if err := rows.Scan(&i, &id); err != nil {
			return err
		}
		of[i-1].LastID = id
	}
	return rows.Err()
}

func (p *poller) readLanes(ctx context.Context, conn *sql.Conn, opts pollOptions) (s *pollResult, due []string, err error) {
	s = &pollResult{heads: make([]*plan.Head, len(p.types))}
	args := append([]any{pq.Array(p.types), pq.Array(p.running())}, spanArgs(opts.spans)...)
	sent := time.Now()
	rows, err := conn.QueryContext(ctx, p.SQL(pollSQL), args...)
	if err != nil {
		return s, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var i int
		var id, priority, attempt, age, dueIn sql.NullInt64
		if err := rows.Scan(&i, &id, &priority, &attempt, &age, &dueIn); err != nil {
			return s, nil, err
		}
		if i == 0 {
			s.headsMissing = true
			continue
		}
		if at := (plan.Position{Priority: int(priority.Int64), Attempt: int(attempt.Int64), TaskID: id.Int64}); id.Valid && (s.heads[i-1] == nil || at.Compare(s.heads[i-1].Position) < 0) {
			s.heads[i-1] = &plan.Head{Position: at, Since: sent.Add(-time.Duration(age.Int64) * time.Microsecond)}
		}
		if !dueIn.Valid {
			continue
		}
		in := max(time.Duration(dueIn.Int64)*time.Microsecond, opts.resting[p.types[i-1]])
		if in <= 0 {
			due = append(due, p.types[i-1])
		}
		if !s.due || in < s.nextDue {
			s.due, s.nextDue = true, in
		}
	}
	s.took = time.Since(sent)
	return s, due, rows.Err()
}

// spanArgs are the spans as arrays, one for each column, with the lanes that they are of.
func spanArgs(spans [][]plan.Span) []any {
	var lane, firstPriority, firstAttempt, firstID, lastPriority, lastAttempt []int64
	for i, of := range spans {
		for _, s := range of {
			lane = append(lane, int64(i+1))
			firstPriority, firstAttempt, firstID = append(firstPriority, int64(s.First.Priority)), append(firstAttempt, int64(s.First.Attempt)), append(firstID, s.First.TaskID)
			lastPriority, lastAttempt = append(lastPriority, int64(s.Last.Priority)), append(lastAttempt, int64(s.Last.Attempt))
		}
	}
	var out []any
	for _, column := range [][]int64{lane, firstPriority, firstAttempt, firstID, lastPriority, lastAttempt} {
		if column == nil {
			column = []int64{}
		}
		out = append(out, pq.Array(column))
	}
	return out
}
