package relay

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lib/pq"
)

// Times are cut to 95 years, as a time.Duration ends at 292. Which lanes have work, and when the next scheduled task of each is due: two index probes for each type. What
// this process runs itself is still visible until its claim commits, and left out, as are types that are paused.
const lookSQL = `/* outbox: look */
SELECT t.i, h.task_id, h.priority, h.attempt, (LEAST(extract(epoch FROM clock_timestamp() - h.run_at), 3e9) * 1000000)::bigint,
       (LEAST(extract(epoch FROM s.run_at - clock_timestamp()), 3e9) * 1000000)::bigint
  FROM (SELECT task_type, i FROM unnest($1::text[]) WITH ORDINALITY AS given (task_type, i)
         WHERE task_type <> ALL (ARRAY(SELECT task_type FROM outbox.task_type WHERE paused))) AS t
  LEFT JOIN LATERAL (
    SELECT priority, attempt, task_id, run_at FROM outbox.task
     WHERE state = 'ready' AND task_type = t.task_type AND task_id <> ALL ($2::bigint[])
     ORDER BY priority, attempt, task_id LIMIT 1) h ON true
  LEFT JOIN LATERAL (
    SELECT run_at FROM outbox.task WHERE state = 'scheduled' AND task_type = t.task_type
     ORDER BY run_at LIMIT 1) s ON true
 WHERE h.task_id IS NOT NULL OR s.run_at IS NOT NULL
 UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL WHERE (SELECT turn_id FROM outbox.turn ORDER BY turn_id LIMIT 1) IS NOT NULL`

// The last task of each head's priority and attempt, for the range of a pivot. The row comparison makes the
// planner read the lane's index backwards, where equality would tempt it to the primary key.
const lastSQL = `/* outbox: look for the ends of lanes */
SELECT h.i, l.task_id
  FROM unnest($1::text[], $2::smallint[], $3::smallint[]) WITH ORDINALITY AS h (task_type, priority, attempt, i)
 CROSS JOIN LATERAL (
    SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = h.task_type
       AND (priority, attempt, task_id) <= (h.priority, h.attempt, 9223372036854775807)
     ORDER BY priority DESC, attempt DESC, task_id DESC LIMIT 1) l`

// NO KEY UPDATE is enough, and lets others look at the row.
const promoteSQL = `/* outbox: promote scheduled tasks */
WITH due AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'scheduled' AND task_type = $1 AND run_at <= now()
   ORDER BY run_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready' WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM due))`

// One look promotes so much only, as others wait for what it sees. The next one goes on.
const (
	promoteTypes = 50
	promoteTasks = 1000
)

const strandedLeasesSQL = `/* outbox: look for leases of dead relays */
SELECT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased'
   AND (t.leased_until < clock_timestamp() OR NOT EXISTS (
     SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id AND l.alive_until > clock_timestamp())))`

// head is the first task of a lane.
type head struct {
	pivot
	lastID int64     // of the lane's tasks with the same priority and attempt; only in random order
	since  time.Time // when it became due, by this process's clock
}

// sight is the result of a look.
type sight struct {
	heads   []*head // by the index of the lane
	nextDue time.Duration
	turns   bool  // some ordering key may have no first task
	due     bool  // some task is scheduled: nextDue holds
	wish    int64 // the wish that was set; 0 if none
	// stranded: dead relays hold leases. Only looked for when asked.
	stranded bool
}

// maxExcluded bounds how many running tasks a look leaves out; more only cost a claim that finds little.
const maxExcluded = 1000

// wanted is what a look does besides.
type wanted struct {
	writable bool  // see first whether the server takes writes
	ask      bool  // to be woken
	takeBack int64 // a wish for that; 0 for none
	stranded bool  // look for leases of dead relays
}

var errReadOnly = errors.New("relay: the server is read-only")

// look reads the lanes, promotes what is due first, and asks to be woken before it reads, if it should: what
// commits later sends a notification then.
func (r *Relay) look(ctx context.Context, want wanted) (s *sight, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := r.conns.get(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			drop(conn)
			return
		}
		r.conns.put(conn)
	}()
	if want.writable {
		var readOnly bool
		if err = conn.QueryRowContext(ctx, "SELECT current_setting('transaction_read_only')::boolean").Scan(&readOnly); err != nil {
			return nil, err
		}
		if readOnly {
			return nil, errReadOnly
		}
	}
	wish := int64(0)
	if want.takeBack > 0 {
		err = r.takeBack(ctx, conn, want.takeBack)
	} else if want.ask {
		wish, err = r.ask(ctx, conn)
	}
	if err != nil {
		return nil, err
	}
	stranded := false
	if want.stranded { // before the lanes are read, so that what is taken over in between is seen there
		if err = conn.QueryRowContext(ctx, r.sql(strandedLeasesSQL)).Scan(&stranded); err != nil {
			return nil, err
		}
	}
	s, due, err := r.readLanes(ctx, conn)
	if err == nil && (len(due) > 0 || s.turns) {
		given := 0
		if s.turns {
			if given, err = r.giveTurns(ctx, conn); err != nil {
				return nil, err
			}
		}
		rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
		due = due[:min(len(due), promoteTypes)]
		for _, taskType := range due {
			if _, err := conn.ExecContext(ctx, r.sql(promoteSQL), taskType, promoteTasks/len(due)); err != nil {
				return nil, err
			}
		}
		if s, _, err = r.readLanes(ctx, conn); err == nil && s.turns {
			s.due, s.nextDue = true, 0 // the rest, soon
			if given == 0 {
				s.nextDue = turnsPause
			}
		}
	}
	if err != nil {
		return nil, err
	}
	s.wish, s.stranded = wish, stranded
	if r.config.Order == Random {
		err = r.readLast(ctx, conn, s.heads)
	}
	return s, err
}

// readLast reads the last task of each lane that has a head.
func (r *Relay) readLast(ctx context.Context, conn *sql.Conn, heads []*head) error {
	var of []*head
	var types []string
	var priorities, attempts []int64
	for i, h := range heads {
		if h != nil {
			of, types = append(of, h), append(types, r.types[i])
			priorities, attempts = append(priorities, int64(h.priority)), append(attempts, int64(h.attempt))
		}
	}
	if len(of) == 0 {
		return nil
	}
	rows, err := conn.QueryContext(ctx, r.sql(lastSQL), pq.Array(types), pq.Array(priorities), pq.Array(attempts))
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
		of[i-1].lastID = id
	}
	return rows.Err()
}

func (r *Relay) readLanes(ctx context.Context, conn *sql.Conn) (s *sight, due []string, err error) {
	s = &sight{heads: make([]*head, len(r.types))}
	sent := time.Now()
	rows, err := conn.QueryContext(ctx, r.sql(lookSQL), pq.Array(r.types), pq.Array(r.runningIDs()))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var i int
		var id, priority, attempt, age, dueIn sql.NullInt64
		if err := rows.Scan(&i, &id, &priority, &attempt, &age, &dueIn); err != nil {
			return nil, nil, err
		}
		if i == 0 {
			s.turns = true
			continue
		}
		if id.Valid {
			s.heads[i-1] = &head{pivot: pivot{int(priority.Int64), int(attempt.Int64), id.Int64},
				since: sent.Add(-time.Duration(age.Int64) * time.Microsecond)}
		}
		if !dueIn.Valid {
			continue
		}
		in := time.Duration(dueIn.Int64) * time.Microsecond
		if in <= 0 {
			due = append(due, r.types[i-1])
		}
		if !s.due || in < s.nextDue {
			s.due, s.nextDue = true, in
		}
	}
	return s, due, rows.Err()
}
