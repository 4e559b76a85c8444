package relay

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/lib/pq"
)

// One statement for all claims that wait. set_config makes its commit asynchronous: the journal must survive
// the death of a relay, not of the server, which ends the claims as well. A task with earlier runs is journalled only
// as a suspect that is about to run: this process may be running another suspect now, whose death should cost it nothing.
const journalSQL = `/* outbox: journal runs */
WITH setting AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS off),
     earlier AS MATERIALIZED (
       SELECT task_id, token, relay_id, lost_connection FROM outbox.running WHERE task_id = ANY ($1::bigint[])),
     fresh AS (
       INSERT INTO outbox.running (task_id, token, relay_id)
       SELECT r.task_id, r.token, $3::uuid
         FROM unnest($1::bigint[], $2::uuid[], $4::boolean[]) AS r (task_id, token, suspect), setting
        WHERE setting.off = 'off' AND (r.suspect OR NOT EXISTS (SELECT 1 FROM earlier e WHERE e.task_id = r.task_id)))
SELECT r.task_id, r.token::text, r.relay_id = $3::uuid OR r.lost_connection,
       COALESCE((extract(epoch FROM l.alive_until - clock_timestamp()) * 1000000)::bigint, 0)
  FROM earlier r LEFT JOIN outbox.relay l ON l.relay_id = r.relay_id`

const markRunsSQL = `/* outbox: mark runs that lost their connection */
UPDATE outbox.running r SET lost_connection = true
  FROM unnest($1::bigint[], $2::uuid[]) AS m (task_id, token) WHERE r.task_id = m.task_id AND r.token = m.token`

const forgetRunsSQL = `/* outbox: forget runs that ended */
DELETE FROM outbox.running r
 USING unnest($1::bigint[], $2::uuid[]) AS m (task_id, token) WHERE r.task_id = m.task_id AND r.token = m.token`

// earlier is a run of a task that left its row behind.
type earlier struct {
	token    string
	open     bool          // it is ours, and its result is not recorded yet
	lostConn bool          // it lost its connection, not its life: ours, or marked so by its relay
	alive    time.Duration // for how much longer its relay may still be alive; not positive: it is dead
}

// runs are what one claim journals: its tasks under one token.
type runs struct {
	ids     []int64
	token   string
	suspect bool // journalled although there are earlier runs
	reply   chan journalReply
}

// note is something about runs that is still to be written.
type note struct {
	*runs
	written chan struct{} // closed when it is
}

type journalReply struct {
	earlier map[int64][]earlier
	err     error
}

// journal writes outbox.running on a connection of its own: one statement at a time, for all workers that
// claimed meanwhile.
type journal struct {
	r    *Relay
	held held
	in   chan *runs

	mu           sync.Mutex
	open         map[string]struct{} // tokens of runs whose results are not recorded yet
	mark, forget []note              // to do as soon as the server can be reached
	poke         chan struct{}
}

func newJournal(r *Relay) *journal {
	return &journal{r: r, held: held{conns: r.conns}, in: make(chan *runs, r.config.Workers), open: map[string]struct{}{}, poke: make(chan struct{}, 1)}
}

// record journals runs that are about to begin and returns what earlier runs left, by task; a task that has such is
// journalled only as a suspect. After an error the rows may be there or not: the caller must forget them. It calls
// close when the result is recorded.
func (j *journal) record(r *runs) func() (map[int64][]earlier, error) {
	j.mu.Lock()
	j.open[r.token] = struct{}{}
	j.mu.Unlock()
	r.reply = make(chan journalReply, 1)
	j.in <- r
	return func() (map[int64][]earlier, error) {
		reply := <-r.reply
		return reply.earlier, reply.err
	}
}

func (j *journal) close(r *runs) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, r.token)
}

func (j *journal) isOpen(token string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, open := j.open[token]
	return open
}

// markLost notes that the runs lost their connection; forgetRuns that they were no runs, or ended. The returned
// function waits until that is written, if the server takes it in time: for callers that let go of the tasks next,
// as whoever has them then should not find runs that are none, nor count them when this process dies.
func (j *journal) markLost(r *runs) (wait func())   { return j.later(&j.mark, r) }
func (j *journal) forgetRuns(r *runs) (wait func()) { return j.later(&j.forget, r) }

func (j *journal) later(list *[]note, r *runs) (wait func()) {
	n := note{r, make(chan struct{})}
	j.mu.Lock()
	*list = append(*list, n)
	j.mu.Unlock()
	select {
	case j.poke <- struct{}{}:
	default:
	}
	return func() {
		select {
		case <-n.written:
		case <-time.After(time.Second):
		}
	}
}

// run works until stop is closed, then writes what is still to be noted, if it can.
func (j *journal) run(stop <-chan struct{}) {
	defer j.held.close()
	ctx := context.Background()
	backoff := newLoopBackoff()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	write := func() {
		if err := j.writeNotes(ctx); err != nil {
			d, _ := backoff.Next()
			retry.Reset(d)
			return
		}
		backoff = newLoopBackoff()
	}
	for {
		select {
		case first := <-j.in:
			batch := []*runs{first}
			for more := true; more; {
				select {
				case next := <-j.in:
					batch = append(batch, next)
				default:
					more = false
				}
			}
			j.write(ctx, batch)
		case <-j.poke:
			write()
		case <-retry.C:
			write()
		case <-stop:
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_ = j.writeNotes(ctx)
			return
		}
	}
}

func (j *journal) write(ctx context.Context, batch []*runs) {
	// What this relay has ended itself must not look like a lost run.
	if err := j.writeNotes(ctx); err != nil {
		for _, r := range batch {
			r.reply <- journalReply{err: err}
		}
		return
	}
	found := make(map[int64][]earlier)
	taskIDs, tokens, suspects := pairs(batch)
	err := j.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		clear(found) // it may be repeated
		rows, err := conn.QueryContext(ctx, j.r.sql(journalSQL), pq.Array(taskIDs), pq.Array(tokens), j.r.id, pq.Array(suspects))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id, alive int64
			var e earlier
			if err := rows.Scan(&id, &e.token, &e.lostConn, &alive); err != nil {
				return err
			}
			e.alive = time.Duration(alive) * time.Microsecond
			e.open = j.isOpen(e.token)
			found[id] = append(found[id], e)
		}
		return rows.Err()
	})
	for _, r := range batch {
		own := make(map[int64][]earlier)
		for _, id := range r.ids {
			if e := found[id]; e != nil && err == nil {
				own[id] = e
			}
		}
		r.reply <- journalReply{own, err}
	}
}

// writeNotes writes the marks and deletes the rows to forget; what fails stays to be done.
func (j *journal) writeNotes(ctx context.Context) error {
	j.mu.Lock()
	mark, forget := j.mark, j.forget
	j.mu.Unlock()
	for _, todo := range []struct {
		list  *[]note
		notes []note
		sql   string
	}{{&j.mark, mark, markRunsSQL}, {&j.forget, forget, forgetRunsSQL}} {
		if len(todo.notes) == 0 {
			continue
		}
		all := make([]*runs, len(todo.notes))
		for i, n := range todo.notes {
			all[i] = n.runs
		}
		taskIDs, tokens, _ := pairs(all)
		err := j.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, j.r.sql(todo.sql), pq.Array(taskIDs), pq.Array(tokens))
			return err
		})
		if err != nil {
			return err
		}
		j.mu.Lock()
		*todo.list = (*todo.list)[len(todo.notes):]
		j.mu.Unlock()
		for _, n := range todo.notes {
			close(n.written)
		}
	}
	return nil
}

func pairs(batch []*runs) (taskIDs []int64, tokens []string, suspects []bool) {
	for _, r := range batch {
		for _, id := range r.ids {
			taskIDs = append(taskIDs, id)
			tokens = append(tokens, r.token)
			suspects = append(suspects, r.suspect)
		}
	}
	return taskIDs, tokens, suspects
}
