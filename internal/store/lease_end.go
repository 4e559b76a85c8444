package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// LeaseEnd is how a lease ends. Its statement names the token, so only the holder of the lease can
// end it.
type LeaseEnd struct {
	Row     *Row
	Token   string
	Done    bool   // the task is deleted
	Counted string // and counted as this kind; "": as finished
	Back    bool   // the task is ready, as if it had not been claimed
	Change  Change
	Keep    time.Duration // of a task that has finished: in the history,
	Finish  *Finish       // as this; nil if Keep is 0
	LostBy  string        // stays on the row: the relay that died while it ran this task
	Held    bool          // the relay still had the lease, and the statement changed the row
}

// resultSettings are for what finish_tasks does not do, which has them as well: a row that is locked
// for longer must not hold up the others of its group.
const resultSettings = "SET LOCAL lock_timeout = '2s'"

// EndLeases ends leases in one transaction, and notes which were held.
func (s *Store) EndLeases(group []*LeaseEnd) error {
	done, other := splitEnds(group)
	if len(other) > 0 || !alike(done) {
		return s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, resultSettings); err != nil {
				return err
			}
			return s.endLeases(ctx, tx, done, other)
		})
	}
	f, settings := newFinishing(done), ""
	if f.kept {
		settings = resultSettings
	}
	err := s.Conns.InMessages(context.Background(), settings, s.SQL(f.query), f.args, true, f.add)
	f.note(done)
	return err
}

// EndLeasesWithin is EndLeases in a transaction of the caller.
func (s *Store) EndLeasesWithin(ctx context.Context, tx *sql.Tx, group []*LeaseEnd) error {
	done, other := splitEnds(group)
	return s.endLeases(ctx, tx, done, other)
}

// splitEnds sorts a group by task: rows are locked in one order.
func splitEnds(group []*LeaseEnd) (done, other []*LeaseEnd) {
	for _, e := range group {
		if e.Done {
			done = append(done, e)
		} else {
			other = append(other, e)
		}
	}
	for _, list := range [][]*LeaseEnd{done, other} {
		slices.SortStableFunc(list, func(a, b *LeaseEnd) int { return cmp.Compare(a.Row.ID, b.Row.ID) })
	}
	return done, other
}

// alike reports whether one statement is enough for tasks that are done, sorted by id: each is there
// once, and each has finished.
func alike(done []*LeaseEnd) bool {
	for i, e := range done {
		if e.Counted != "" || i > 0 && done[i-1].Row.ID == e.Row.ID {
			return false
		}
	}
	return true
}

func (s *Store) endLeases(ctx context.Context, tx *sql.Tx, done, other []*LeaseEnd) error {
	counted := map[string][]string{} // types by kind
	for _, e := range other {
		result, err := s.change(ctx, tx, e)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if e.Held = n == 1; e.Held && e.Change.Failed {
			counted["failed"] = append(counted["failed"], e.Row.TaskType)
		}
	}
	if err := s.finish(ctx, tx, done); err != nil {
		return err
	}
	for _, e := range done {
		if e.Counted != "" && e.Held {
			counted[e.Counted] = append(counted[e.Counted], e.Row.TaskType)
		}
	}
	for kind, types := range counted {
		if err := s.Count(ctx, tx, kind, types); err != nil {
			return err
		}
	}
	return nil
}

// A token is only on leased rows (check_task). The statements that have a task's id do not name the
// state as well: after statistics without leased rows the planner would read the index of all of
// them, dead entries included.
const ReturnLeaseSQL = `/* outbox: end a lease */
UPDATE outbox.task SET state = $3, attempt = $4, last_error = COALESCE($5, last_error), relay_id = $6::uuid,
       run_at = CASE WHEN $3 = 'ready' THEN run_at ELSE clock_timestamp() + $7::bigint * interval '1 microsecond' END,
       lease_token = NULL, leased_until = NULL, ordering_key = $8,
       timeline = CASE WHEN $9::jsonb IS NULL THEN timeline ELSE outbox.add_events(timeline, $9::jsonb) END
 WHERE task_id = $1 AND lease_token = $2::uuid`

const LeaseAgainSQL = `/* outbox: run a leased task again */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $3::bigint * interval '1 microsecond',
       iterations = LEAST(iterations, 2147483646) + 1, attempt = 0, last_error = NULL, timeline = NULL, payload = COALESCE($4::jsonb, payload),
       relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE task_id = $1 AND lease_token = $2::uuid`

const DeadLeaseSQL = `/* outbox: end a lease in the dead letters */
WITH gone AS (
  DELETE FROM outbox.task t WHERE task_id = $1 AND lease_token = $2::uuid
  RETURNING to_jsonb(t) - '{leased_until,relay_id,lease_token,group_place}'::text[] || $3::jsonb AS task)
SELECT outbox.bury(task, $4, false, 0, '{}', NULL, $5::jsonb) FROM gone`

// change ends the lease of a task that is not done.
func (s *Store) change(ctx context.Context, tx *sql.Tx, e *LeaseEnd) (sql.Result, error) {
	c := e.Change
	if c.Reason != "" {
		changes, err := json.Marshal(map[string]any{"attempt": c.Attempt, "reason": c.Reason, "last_error": pgerr.Text(c.Err)})
		if err != nil {
			return nil, err
		}
		return tx.ExecContext(ctx, s.SQL(DeadLeaseSQL), e.Row.ID, e.Token, string(changes), e.Row.Max, s.Noted(c))
	}
	if c.Again {
		payload := sql.NullString{String: c.Payload, Valid: c.Payload != ""} // NULL keeps the task's own
		return tx.ExecContext(ctx, s.SQL(LeaseAgainSQL), e.Row.ID, e.Token, c.Wait.Microseconds(), payload)
	}
	state := "scheduled"
	if e.Back {
		state = "ready"
	}
	var lastError sql.NullString
	if c.Err != nil {
		lastError = sql.NullString{String: pgerr.Text(c.Err), Valid: true}
	}
	lostBy := sql.NullString{String: e.LostBy, Valid: e.LostBy != ""}
	return tx.ExecContext(ctx, s.SQL(ReturnLeaseSQL), e.Row.ID, e.Token, state, c.Attempt, lastError, lostBy,
		c.Wait.Microseconds(), e.Row.KeyAfter(c), s.Noted(c))
}

// finish deletes tasks that are done, sorted by id. A task is in a statement once: of one that this
// relay has lost and claimed again two runs may end together.
func (s *Store) finish(ctx context.Context, tx *sql.Tx, group []*LeaseEnd) error {
	for len(group) > 0 {
		var now, later []*LeaseEnd
		for i, e := range group {
			if i > 0 && group[i-1].Row.ID == e.Row.ID {
				later = append(later, e)
			} else {
				now = append(now, e)
			}
		}
		f := newFinishing(now)
		if err := pg.QueryTx(ctx, tx, s.SQL(f.query), f.args, f.add); err != nil {
			return err
		}
		f.note(now)
		group = later
	}
	return nil
}

// finishing is a statement that deletes tasks that are done, and its result.
type finishing struct {
	query string
	args  []any
	kept  bool               // it writes to the history too
	ids   map[int64]struct{} // kept: the tasks whose leases were held; else those whose leases were lost
}

// finish_tasks finds a task by its place, if it is there still, and returns those whose leases are
// lost.
const FinishSQL = `/* outbox: complete leased tasks */
SELECT * FROM outbox.finish_tasks($1, $2, $3, $4)`

// nowhere is the place of a task whose place is not known. No row is there.
const nowhere = "(0,0)"

func newFinishing(group []*LeaseEnd) *finishing {
	if slices.ContainsFunc(group, func(e *LeaseEnd) bool { return e.Keep > 0 }) {
		return &finishing{query: CompleteAndKeepSQL, args: finishAndKeepArgs(group), kept: true, ids: map[int64]struct{}{}}
	}
	ids, nth := make([]int64, len(group)), make([]int64, len(group))
	places := make([]string, len(group))
	var tokens []string // of claims; nth says which one is a task's
	for i, e := range group {
		at := slices.Index(tokens, e.Token)
		if at < 0 {
			at, tokens = len(tokens), append(tokens, e.Token)
		}
		ids[i], nth[i], places[i] = e.Row.ID, int64(at+1), cmp.Or(e.Row.Place, nowhere)
	}
	args := []any{pq.Array(ids), `{"` + strings.Join(places, `","`) + `"}`, "{" + strings.Join(tokens, ",") + "}", pq.Array(nth)}
	return &finishing{query: FinishSQL, args: args, ids: map[int64]struct{}{}}
}

// finishAndKeepArgs are the arguments of CompleteAndKeepSQL.
func finishAndKeepArgs(group []*LeaseEnd) []any {
	ids, tokens := make([]int64, len(group)), make([]string, len(group))
	keep, outcomes := make([]int64, len(group)), make([]string, len(group))
	errs, results := make([]string, len(group)), make([]string, len(group))
	for i, e := range group {
		ids[i], tokens[i], keep[i] = e.Row.ID, e.Token, e.Keep.Microseconds()
		if e.Finish == nil {
			continue
		}
		if outcomes[i], results[i] = e.Finish.Outcome, e.Finish.Result; e.Finish.Err != nil {
			errs[i] = pgerr.Text(e.Finish.Err)
		}
	}
	return []any{pq.Array(ids), pq.Array(tokens), pq.Array(keep), pq.Array(outcomes), pq.Array(errs),
		pq.Array(results)}
}

func (f *finishing) add(values []driver.Value) error {
	f.ids[pg.Integer(values[0])] = struct{}{}
	return nil
}

func (f *finishing) note(group []*LeaseEnd) {
	for _, e := range group {
		_, named := f.ids[e.Row.ID]
		e.Held = named == f.kept
	}
}
