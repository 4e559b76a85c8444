package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// One statement for all single tasks whose claims wait, and one for each batch. Single tasks each
// have a row, so that a claim finds it by its key; a batch has one row.
const recordRunsSQL = `/* outbox: journal runs */
SELECT * FROM outbox.record_runs($1::bigint[], $2, $3, $4::uuid[], $5::boolean[], $6::uuid)`

const recordBatchSQL = `/* outbox: journal runs of a batch */
SELECT * FROM outbox.record_batch($1::bigint[], $2, $3, $4::uuid, $5::uuid, $6::text::xid8)`

// Earlier is a run of a task that left its row behind.
type Earlier struct {
	Token    string
	open     bool          // it is ours, and its result is not recorded yet
	LostConn bool          // it lost its connection, not its life: ours, or marked so by its relay
	alive    time.Duration // for how much longer its relay may still be alive; not positive: it is dead
}

// Runs are what one claim journals: its tasks under one token.
type Runs struct {
	IDs         []int64
	first, last int64 // the least and the greatest
	Token, xid  string
	Suspect     bool // journalled although there are earlier runs
	reply       chan journalReply
}

func NewRuns(rows []*Row, xid string) *Runs {
	all := IDs(rows)
	return &Runs{IDs: all, first: slices.Min(all), last: slices.Max(all), Token: NewUUID(), xid: xid}
}

// Batch reports whether the journal has one row for all of them: it had, until it was split. A
// batch of suspects has a row for each.
func (r *Runs) Batch() bool { return len(r.IDs) > 1 && !r.Suspect }

// Forget is a statement that deletes what the journal has of tasks that are done, and these runs of
// several tasks.
func (r *Runs) Forget(of *Store, done []*Row) string {
	if r.Batch() {
		return of.SQL(fmt.Sprintf("DELETE FROM outbox.running WHERE task_id = %d AND token = '%s'", r.first, r.Token))
	}
	ids, _ := pq.Array(r.IDs).Value() // no error, of integers
	const runs = "; DELETE FROM outbox.running WHERE task_id = ANY ('%s') AND token = '%s'"
	return of.ForgetTasks(done) + of.SQL(fmt.Sprintf(runs, ids, r.Token))
}

type journalReply struct {
	earlier map[int64][]Earlier
	err     error
}

// Journal writes outbox.running on a connection of its own: one statement at a time, for all
// workers that claimed meanwhile.
type Journal struct {
	store *Store
	pace  pg.Pace
	held  pg.Dedicated
	in    chan *Runs

	mu           sync.Mutex
	open         map[string]struct{} // tokens of runs whose results are not recorded yet
	mark, forget []*note             // to do as soon as the server can be reached
	poke         chan struct{}
}

func NewJournal(s *Store, pace pg.Pace, workers int) *Journal {
	return &Journal{store: s, pace: pace, held: pg.NewDedicated(s.Conns), in: make(chan *Runs, workers),
		open: map[string]struct{}{}, poke: make(chan struct{}, 1)}
}

// Record journals runs that are about to begin and returns what earlier runs left, by task; a task
// that has such is journalled only as a suspect. After an error the rows may be there or not: the
// caller must forget them. It calls Close when the result is recorded.
func (j *Journal) Record(r *Runs) func() (map[int64][]Earlier, error) {
	j.mu.Lock()
	j.open[r.Token] = struct{}{}
	j.mu.Unlock()
	r.reply = make(chan journalReply, 1)
	j.in <- r
	return func() (map[int64][]Earlier, error) {
		reply := <-r.reply
		return reply.earlier, reply.err
	}
}

func (j *Journal) Close(r *Runs) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, r.Token)
}

func (j *Journal) isOpen(token string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, open := j.open[token]
	return open
}

// CloseConnection closes the journal's own connection.
func (j *Journal) CloseConnection() { j.held.Close() }

// Run works until stop is closed, then writes what is still to be noted, if it can.
func (j *Journal) Run(stop <-chan struct{}) {
	defer j.CloseConnection()
	ctx := context.Background()
	retries := &j.pace
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	write := func() {
		retries.Try()
		if err := j.WriteNotes(ctx, true); err != nil {
			retry.Reset(retries.Fail())
			return
		}
		retries.OK()
	}
	for {
		select {
		case first := <-j.in:
			j.write(ctx, j.waiting(first))
		case <-j.poke:
			write()
		case <-retry.C:
			write()
		case <-retries.Answered:
			write()
		case <-stop:
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_ = j.WriteNotes(ctx, true)
			return
		}
	}
}

// WriteWaiting journals the runs that wait, if there are some.
func (j *Journal) WriteWaiting(ctx context.Context) {
	select {
	case first := <-j.in:
		j.write(ctx, j.waiting(first))
	default:
	}
}

// waiting are the runs that wait, after the first one.
func (j *Journal) waiting(first *Runs) []*Runs {
	batch := []*Runs{first}
	for {
		select {
		case next := <-j.in:
			batch = append(batch, next)
		default:
			return batch
		}
	}
}

func (j *Journal) write(ctx context.Context, batch []*Runs) {
	// A run that this relay has ended itself must not look like a lost run.
	if err := j.WriteNotes(ctx, false); err != nil && !pgerr.Refusal(err) {
		for _, r := range batch {
			r.reply <- journalReply{err: err}
		}
		return
	}
	var single []*Runs
	for _, r := range batch {
		if err := j.refused(r); err != nil {
			r.reply <- journalReply{err: err}
		} else if r.Batch() {
			found, err := j.ask(ctx, recordBatchSQL, pq.Array(r.IDs), r.first, r.last, r.Token, j.store.RelayID, r.xid)
			r.reply <- journalReply{found, err}
		} else {
			single = append(single, r)
		}
	}
	if len(single) > 0 {
		j.writeSingle(ctx, single)
	}
}

// writeSingle journals claims that have a row for each task: together, or one by one if PostgreSQL
// refuses that, as one of them may be the reason.
func (j *Journal) writeSingle(ctx context.Context, single []*Runs) {
	taskIDs, tokens, suspects := pairs(single)
	found, err := j.ask(ctx, recordRunsSQL, pq.Array(taskIDs), slices.Min(taskIDs), slices.Max(taskIDs),
		pq.Array(tokens), pq.Array(suspects), j.store.RelayID)
	for _, r := range single {
		if len(single) > 1 && pgerr.Refusal(err) {
			j.writeSingle(ctx, []*Runs{r})
			continue
		}
		var own map[int64][]Earlier
		if e := found[r.IDs[0]]; e != nil {
			own = map[int64][]Earlier{r.IDs[0]: e}
		}
		r.reply <- journalReply{own, err}
	}
}

// ask journals, and returns what earlier runs left of the tasks.
func (j *Journal) ask(ctx context.Context, query string, args ...any) (found map[int64][]Earlier, err error) {
	err = j.held.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		found = nil // it may be repeated
		return j.store.Conns.Exclusively(conn, func(c pg.Exclusive) error {
			return c.Together(ctx, "", j.store.SQL(query), args, "", func(v []driver.Value) error {
				e := Earlier{Token: pg.Text(v[1]), LostConn: pg.Boolean(v[2])}
				e.alive, e.open = time.Duration(pg.Integer(v[3]))*time.Microsecond, j.isOpen(e.Token)
				if found == nil {
					found = map[int64][]Earlier{}
				}
				id := pg.Integer(v[0])
				found[id] = append(found[id], e)
				return nil
			})
		})
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func pairs(batch []*Runs) (taskIDs []int64, tokens []string, suspects []bool) {
	for _, r := range batch {
		for _, id := range r.IDs {
			taskIDs = append(taskIDs, id)
			tokens = append(tokens, r.Token)
			suspects = append(suspects, r.Suspect)
		}
	}
	return taskIDs, tokens, suspects
}

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

// maxLostConnections is how many runs of a task may lose their connection before it is a dead
// letter: its SQL then probably kills its backend.
const maxLostConnections = 10

// Judgement is what earlier runs of a claimed task, known from the journal, mean for this one.
type Judgement int

const (
	Fresh        Judgement = iota // nothing happened before
	Suspect                       // a run was lost: run it with Isolation
	Postponed                     // wait until the heartbeats of its relays have decided
	DeadAttempts                  // lost runs have used up its attempts
	DeadLostConns
)

// Judge decides by the rows that earlier runs left. A run whose relay is dead was an attempt; one
// that lost its connection was none; one whose relay may still live is undecided. An undecided run
// alone does not hold the task up. With another lost or undecided run, or
// where they may have used up the attempts, the task waits until the heartbeats have decided. So does a task
// past its expiry that may not have begun.
func (r *Row) Judge(found []Earlier) (earlier Judgement, wait time.Duration) {
	conns := 0
	for _, e := range found {
		switch {
		case e.open: // its claim is gone, by its handler or its commit, and its result about to be recorded
			return Postponed, 100 * time.Millisecond
		case e.LostConn:
			conns++
		case e.alive <= 0:
			r.Lost++
		default:
			r.Undecided = append(r.Undecided, e.Token)
			wait = max(wait, e.alive)
		}
	}
	u := len(r.Undecided)
	r.Isolation = isolationOf(r.Lost+u, r.Max-r.Attempt-r.Lost-u)
	switch {
	case len(found) == 0 && !r.Exhausted():
		return Fresh, 0
	case conns >= maxLostConnections:
		return DeadLostConns, 0
	case r.Attempt+r.Lost >= r.Max:
		return DeadAttempts, 0
	case u > 0 && (r.Lost+u >= 2 || r.Attempt+r.Lost+u >= r.Max || r.Expired() && r.Lost+conns == 0):
		return Postponed, wait + 100*time.Millisecond
	}
	return Suspect, 0
}

// JudgeLeased sets the Isolation of a leased task whose last run was lost with its relay, and
// reports whether an attempt is left.
func (r *Row) JudgeLeased() bool {
	r.Isolation = isolationOf(max(r.lostInARow(), 1), r.Max-r.Attempt)
	return !r.Exhausted()
}

// Exhausted reports whether all attempts were begun before, as far as the row itself tells.
func (r *Row) Exhausted() bool { return r.Attempt >= r.Max }

// Begun is the number of attempts begun, with the present one.
func (r *Row) Begun() int { return r.Attempt + r.Lost + 1 }

// LostText is the last error of a task whose runs were lost.
func (r *Row) LostText(earlier Judgement) error {
	if earlier == DeadLostConns {
		return fmt.Errorf("relay: %d runs of the task lost their connection to PostgreSQL", maxLostConnections)
	}
	if r.Lost == 0 {
		return fmt.Errorf("relay: all %d attempts were begun before", r.Max)
	}
	return fmt.Errorf("relay: the process died while it ran the task, %d times", r.Lost)
}
