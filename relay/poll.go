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
	"github.com/txoutbox/outbox/internal/writable"
)

// Which lanes have work, and when the next scheduled task of each is due. What this process runs
// itself is still visible until its claim commits, and left out.
const pollSQL = `/* outbox: poll */
SELECT i, task_id, priority, attempt, age, due_in FROM outbox.poll($1, $2, $3, $4, $5, $6, $7, $8, $9, true)`

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
	explain func(context.Context, error) error
}

// poll reads the heads of the lanes, and what is to be promoted.
func (p *poller) poll(ctx context.Context, opts plan.Poll) (plan.PollResult, error) {
	ctx, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	conn, err := p.Conns.Get(ctx)
	if err != nil {
		return plan.PollResult{}, err
	}
	result, err := p.pollOn(ctx, conn, opts)
	if err != nil {
		pg.Drop(conn)
	} else {
		p.Conns.Put(conn)
	}
	return result, err
}

// pollOn requests wake-ups before it reads, if it should: what commits later sends a notification then.
func (p *poller) pollOn(ctx context.Context, conn *sql.Conn, opts plan.Poll) (none plan.PollResult, err error) {
	var wakeRequest int64
	var stranded bool
	first := func(q pg.Querier) (err error) {
		if opts.Writable {
			if err := writable.Check(ctx, q); err != nil {
				return err
			}
		}
		if opts.Withdraw > 0 {
			err = p.WithdrawWakeUp(ctx, q, opts.Withdraw)
		} else if opts.RequestWakeUp > 0 {
			wakeRequest, err = p.RequestWakeUp(ctx, q, opts.RequestWakeUp)
		}
		if err == nil && opts.Stranded { // before the lanes are read, so that what is taken over in between is seen there
			err = q.QueryRowContext(ctx, p.SQL(strandedLeasesSQL)).Scan(&stranded)
		}
		return err
	}
	if opts.Writable || opts.Withdraw > 0 || opts.RequestWakeUp > 0 || opts.Stranded {
		err = p.Conns.Own(ctx, conn, first)
	}
	if err != nil {
		return none, err
	}
	read, err := p.readLanes(ctx, conn, opts)
	if err != nil {
		return none, err
	}
	read.WakeRequest, read.Stranded = wakeRequest, stranded
	if p.random {
		err = p.readLast(ctx, conn, read.Heads)
	}
	return read, err
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
	return p.Conns.Own(ctx, conn, func(q pg.Querier) error {
		rows, err := q.QueryContext(ctx, p.SQL(lastSQL), pq.Array(types), pq.Array(priorities), pq.Array(attempts))
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
	})
}

func (p *poller) readLanes(ctx context.Context, conn *sql.Conn, opts plan.Poll) (s plan.PollResult, err error) {
	err = p.Conns.Own(ctx, conn, func(q pg.Querier) error {
		s, err = p.lanes(ctx, q, opts)
		return err
	})
	return s, err
}

func (p *poller) lanes(ctx context.Context, conn pg.Querier, opts plan.Poll) (s plan.PollResult, err error) {
	s.Heads = make([]*plan.Head, len(p.types))
	args := append([]any{pq.Array(p.types), pq.Array(p.running())}, spanArgs(opts.Spans)...)
	args = append(args, opts.FromRequest)
	sent := time.Now()
	rows, err := conn.QueryContext(ctx, p.SQL(pollSQL), args...)
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		var i int
		var id, priority, attempt, age, dueIn sql.NullInt64
		if err := rows.Scan(&i, &id, &priority, &attempt, &age, &dueIn); err != nil {
			return s, err
		}
		if i == 0 {
			s.Request, s.LastRequest = id.Int64, age.Int64
			continue
		}
		at := plan.Position{Priority: int(priority.Int64), Attempt: int(attempt.Int64), TaskID: id.Int64}
		if h := s.Heads[i-1]; id.Valid && (h == nil || at.Compare(h.Position) < 0) {
			s.Heads[i-1] = &plan.Head{Position: at, Since: sent.Add(-time.Duration(age.Int64) * time.Microsecond)}
		}
		if !dueIn.Valid {
			continue
		}
		in := max(time.Duration(dueIn.Int64)*time.Microsecond, opts.Resting[p.types[i-1]])
		if in <= 0 {
			s.DueTypes = append(s.DueTypes, p.types[i-1])
		} else if !s.Due || in < s.NextDue {
			s.Due, s.NextDue = true, in
		}
	}
	s.Took = time.Since(sent)
	return s, rows.Err()
}

// spanArgs are the spans as arrays, one for each column, with the lanes that they are of.
func spanArgs(spans [][]plan.Span) []any {
	var lane, firstPriority, firstAttempt, firstID, lastPriority, lastAttempt []int64
	for i, of := range spans {
		for _, s := range of {
			lane = append(lane, int64(i+1))
			firstPriority = append(firstPriority, int64(s.First.Priority))
			firstAttempt = append(firstAttempt, int64(s.First.Attempt))
			firstID = append(firstID, s.First.TaskID)
			lastPriority = append(lastPriority, int64(s.Last.Priority))
			lastAttempt = append(lastAttempt, int64(s.Last.Attempt))
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

// NO KEY UPDATE is enough, and lets others read the row.
const promoteScheduledSQL = `/* outbox: promote scheduled tasks */
WITH due AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'scheduled' AND task_type = $1 AND run_at <= now()
   ORDER BY run_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready'
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM due)) AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// One promotion makes scheduled tasks of at most so many types ready: each is a statement.
const promoteScheduledTypes = 50

// promote makes due tasks, heads of ordering keys and tasks for free places of group keys ready: a part
// of them, if there are many.
func (p *poller) promote(ctx context.Context, a plan.Promote) plan.Promoted {
	ctx, cancel := context.WithTimeout(ctx, pg.StatementTimeout)
	defer cancel()
	done := plan.Promoted{Promote: a, Refused: map[string]plan.Failure{}}
	conn, err := p.Conns.Get(ctx)
	if err == nil {
		if err = p.promoteOn(ctx, conn, &done); err != nil {
			pg.Drop(conn)
		} else {
			p.Conns.Put(conn)
		}
	}
	done.Failure = failureOf(p.explain(ctx, err))
	return done
}

// promoteOn goes on where PostgreSQL refuses a part.
func (p *poller) promoteOn(ctx context.Context, conn *sql.Conn, done *plan.Promoted) (err error) {
	if first := done.Promote.Request; first > 0 {
		done.Done, err = p.PromoteHeads(ctx, conn, first, done.Promote.Limit)
		if err != nil && !pgerr.Refusal(err) {
			done.Promote.Types = nil // they are not to blame
			return err
		}
		done.HeadsRefused = failureOf(p.explain(ctx, err))
	}
	due := done.Promote.Types
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	due = due[:min(len(due), promoteScheduledTypes)]
	for i, taskType := range due {
		var result sql.Result
		err := p.Conns.Own(ctx, conn, func(q pg.Querier) (err error) {
			result, err = q.ExecContext(ctx, p.SQL(promoteScheduledSQL), taskType, max(1, done.Promote.Limit/len(due)))
			return err
		})
		if pgerr.Refusal(err) { // others go on
			done.Refused[taskType] = failureOf(p.explain(ctx, err))
			continue
		}
		if err != nil {
			done.Promote.Types, done.Promote.Request = due[i:i+1], 0 // the others and the heads are not to blame
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		done.Done += int(n)
	}
	done.Promote.Types = due
	return nil
}
