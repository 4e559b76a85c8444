package store

import (
	"context"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// The row of a batch becomes rows of its tasks.
const markBatchSQL = `/* outbox: mark a batch that lost its connection */
WITH gone AS (DELETE FROM outbox.running WHERE task_id = $1 AND token = $2::uuid AND task_ids IS NOT NULL RETURNING *)
INSERT INTO outbox.running (task_id, token, relay_id, lost_connection, started_at)
SELECT unnest(task_ids), token, relay_id, true, started_at FROM gone`

const markRunsSQL = `/* outbox: mark runs that lost their connection */
UPDATE outbox.running r SET lost_connection = true
  FROM unnest($1::bigint[], $2::uuid[]) AS m (task_id, token) WHERE r.task_id = m.task_id AND r.token = m.token`

const forgetRunsSQL = `/* outbox: forget runs that ended */
DELETE FROM outbox.running r
 USING unnest($1::bigint[], $2::uuid[]) AS m (task_id, token) WHERE r.task_id = m.task_id AND r.token = m.token`

// note is something about runs that is still to be written.
type note struct {
	runs    *Runs
	written chan struct{} // closed when it is
	done    bool          // it is
	refused error         // why PostgreSQL refused it when it was last tried
}

// MarkLost notes that the runs lost their connection; ForgetRuns that they were no runs, or ended.
// The returned function waits until that is written, if the server takes it in time. Callers wait
// that release the tasks next, so that the next holder finds no such runs, and counts none when
// this process dies.
func (j *Journal) MarkLost(r *Runs) (wait func())   { return j.later(&j.mark, r) }
func (j *Journal) ForgetRuns(r *Runs) (wait func()) { return j.later(&j.forget, r) }

func (j *Journal) later(list *[]*note, r *Runs) (wait func()) {
	n := &note{runs: r, written: make(chan struct{})}
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

// refused is why none of r's tasks can be journalled: PostgreSQL refuses a note of an earlier run.
func (j *Journal) refused(r *Runs) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, list := range [][]*note{j.mark, j.forget} {
		for _, n := range list {
			if n.refused != nil && slices.ContainsFunc(n.runs.IDs, func(id int64) bool { return slices.Contains(r.IDs, id) }) {
				return n.refused
			}
		}
	}
	return nil
}

// WriteNotes writes the marks and deletes the rows to forget. What fails stays to be done. A note
// that PostgreSQL refuses holds up no other; one that it refused before is tried only if again is
// set.
func (j *Journal) WriteNotes(ctx context.Context, again bool) (refused error) {
	for _, todo := range []struct {
		list *[]*note
		sql  string
	}{{&j.mark, markRunsSQL}, {&j.forget, forgetRunsSQL}} {
		j.mu.Lock()
		notes := slices.DeleteFunc(slices.Clone(*todo.list), func(n *note) bool { return n.refused != nil && !again })
		j.mu.Unlock()
		if len(notes) == 0 {
			continue
		}
		err := j.writeTogether(ctx, todo.list, todo.sql, notes...)
		if !pgerr.Refusal(err) {
			if err != nil {
				return err
			}
			continue
		}
		for _, n := range notes { // it may be one of them
			if err := j.writeTogether(ctx, todo.list, todo.sql, n); pgerr.Refusal(err) {
				n.refused, refused = err, err
			} else if err != nil {
				return err
			}
		}
	}
	return refused
}

// writeTogether writes notes of a list, which loses them then.
func (j *Journal) writeTogether(ctx context.Context, list *[]*note, query string, notes ...*note) error {
	all := make([]*Runs, len(notes))
	for i, n := range notes {
		all[i] = n.runs
	}
	taskIDs, tokens, _ := pairs(all)
	err := j.held.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		for _, r := range all {
			if query == markRunsSQL && r.Batch() {
				if _, err := conn.ExecContext(ctx, j.store.SQL(markBatchSQL), r.first, r.Token); err != nil {
					return err
				}
			}
		}
		_, err := conn.ExecContext(ctx, j.store.SQL(query), pq.Array(taskIDs), pq.Array(tokens))
		return err
	})
	if err != nil {
		return err
	}
	for _, n := range notes {
		n.done = true
		close(n.written)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	*list = slices.DeleteFunc(*list, func(n *note) bool { return n.done })
	return nil
}
