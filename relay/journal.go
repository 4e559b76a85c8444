package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// One statement for all single tasks whose claims wait, another one if any of them has a history, and one for each batch. See the functions
// for what they do.
const beginRunsSQL = `/* outbox: journal runs */
SELECT outbox.begin_runs($1, $2, $3, $4, $5)`

const recordRunsSQL = `/* outbox: journal runs */
SELECT * FROM outbox.record_runs($1::bigint[], $2, $3, $4::uuid[], $5::boolean[], $6::uuid)`

const recordBatchSQL = `/* outbox: journal runs */
SELECT * FROM outbox.record_batch($1::bigint[], $2, $3, $4::uuid, $5::uuid, $6::text::xid8)`

// earlier is a run of a task that left its row behind.
type earlier struct {
	token    string
	open     bool          // it is ours, and its result is not recorded yet
	lostConn bool          // it lost its connection, not its life: ours, or marked so by its relay
	alive    time.Duration // for how much longer its relay may still be alive; not positive: it is dead
}

// runs are what one claim journals: its tasks under one token.
type runs struct {
	ids         []int64
	first, last int64 // the least and the greatest
	token, xid  string
	suspect     bool // journalled although there are earlier runs
	reply       chan journalReply
}

func newRuns(rows []*row, xid string) *runs {
	all := ids(rows)
	return &runs{ids: all, first: slices.Min(all), last: slices.Max(all), token: newUUID(), xid: xid}
}

// batch reports whether the journal has one row for all of them: it had, until it was split.
func (r *runs) batch() bool { return len(r.ids) > 1 }

// forget is a statement that deletes what the journal has of tasks that are done, and the row of a batch in any case.
func (r *runs) forget(of *store, done []*row) string {
	if r.batch() {
		return of.sql("DELETE FROM outbox.running WHERE task_id = " + strconv.FormatInt(r.first, 10) + " AND token = '" + r.token + "'")
	}
	return of.forgetTasks(done)
}

type journalReply struct {
	earlier map[int64][]earlier
	err     error
}

// journal writes outbox.running on a connection of its own: one statement at a time, for all workers that
// claimed meanwhile.
type journal struct {
	*store
	pace pg.Pace
	held pg.Dedicated
	in   chan *runs

	mu           sync.Mutex
	open         map[string]struct{} // tokens of runs whose results are not recorded yet
	mark, forget []*note             // to do as soon as the server can be reached
	poke         chan struct{}
}

func newJournal(s *store, pace pg.Pace, workers int) *journal {
	return &journal{store: s, pace: pace, held: pg.NewDedicated(s.conns), in: make(chan *runs, workers), open: map[string]struct{}{}, poke: make(chan struct{}, 1)}
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

// closeConnection closes the journal's own connection.
func (j *journal) closeConnection() { j.held.Close() }

// run works until stop is closed, then writes what is still to be noted, if it can.
func (j *journal) run(stop <-chan struct{}) {
	defer j.closeConnection()
	ctx := context.Background()
	retries := &j.pace
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	write := func() {
		retries.Try()
		if err := j.writeNotes(ctx, true); err != nil {
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
			_ = j.writeNotes(ctx, true)
			return
		}
	}
}

// writeWaiting journals the runs that wait, if there are some.
func (j *journal) writeWaiting(ctx context.Context) {
	select {
	case first := <-j.in:
		j.write(ctx, j.waiting(first))
	default:
	}
}

// waiting are the runs that wait, after the first one.
func (j *journal) waiting(first *runs) []*runs {
	batch := []*runs{first}
	for {
		select {
		case next := <-j.in:
			batch = append(batch, next)
		default:
			return batch
		}
	}
}

func (j *journal) write(ctx context.Context, batch []*runs) {
	// What this relay has ended itself must not look like a lost run.
	if err := j.writeNotes(ctx, false); err != nil && !pgerr.Refusal(err) {
		for _, r := range batch {
			r.reply <- journalReply{err: err}
		}
		return
	}
	var single []*runs
	for _, r := range batch {
		if err := j.refused(r); err != nil {
			r.reply <- journalReply{err: err}
		} else if r.batch() {
			found, err := j.ask(ctx, recordBatchSQL, pq.Array(r.ids), r.first, r.last, r.token, j.relayID, r.xid)
			r.reply <- journalReply{found, err}
		} else {
			single = append(single, r)
		}
	}
	if len(single) == 0 {
		return
	}
	found, err := j.begin(ctx, single)
	if len(single) > 1 && pgerr.Refusal(err) { // it may be one of them
		for _, r := range single {
			found, err := j.begin(ctx, []*runs{r})
			r.reply <- journalReply{found, err}
		}
		return
	}
	for _, r := range single {
		var own map[int64][]earlier
		if e := found[r.ids[0]]; e != nil {
			own = map[int64][]earlier{r.ids[0]: e}
		}
		r.reply <- journalReply{own, err}
	}
}

// begin journals runs of single tasks, and returns what earlier runs left of them.
func (j *journal) begin(ctx context.Context, single []*runs) (found map[int64][]earlier, err error) {
	taskIDs, tokens, suspects := pairs(single)
	first, last := slices.Min(taskIDs), slices.Max(taskIDs)
	if !slices.Contains(suspects, true) {
		begun := false
		err = j.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return j.conns.Raw(conn, func(c pg.Exclusive) error {
				return c.Together(ctx, "", j.sql(beginRunsSQL), []any{pq.Array(taskIDs), pq.Array(tokens), first, last, j.relayID}, "", func(v []driver.Value) error {
					begun = pg.Boolean(v[0])
					return nil
				})
			})
		})
		if begun || err != nil {
			return nil, err
		}
	}
	return j.ask(ctx, recordRunsSQL, pq.Array(taskIDs), first, last, pq.Array(tokens), pq.Array(suspects), j.relayID)
}

// ask journals, and returns what earlier runs left of the tasks.
func (j *journal) ask(ctx context.Context, query string, args ...any) (found map[int64][]earlier, err error) {
	err = j.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		found = nil // it may be repeated
		return j.conns.Raw(conn, func(c pg.Exclusive) error {
			return c.Together(ctx, "", j.sql(query), args, "", func(v []driver.Value) error {
				e := earlier{token: pg.Text(v[1]), lostConn: pg.Boolean(v[2]), alive: time.Duration(pg.Integer(v[3])) * time.Microsecond}
				e.open = j.isOpen(e.token)
				if found == nil {
					found = map[int64][]earlier{}
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
