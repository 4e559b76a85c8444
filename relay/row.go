package relay

import (
	"cmp"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
)

type task = outbox.Task[json.RawMessage]

// row is a claimed task: all that is needed to write it back, as its row is deleted or may be.
type row struct {
	id                 int64
	taskType           string
	priority, attempt  int // the columns as claimed
	max                int
	rowMax             sql.NullInt64
	runAt, createdAt   int64         // µs since 1970
	attemptedAt        sql.NullInt64 // of the run before
	began              sql.NullInt64 // this run, as attempted_at; else it began with the transaction
	payload            string
	headers, lastError sql.NullString
	optional
	lostBy    sql.NullString // a Leased task: the relay that died while it ran it
	lost      int            // runs that died with their process, beyond attempt
	undecided []string       // tokens of runs whose relay may still live
	leasedAt  time.Time      // a Leased task: before its claim was sent
	place     string         // a Leased task: its ctid after the claim
	discarded error          // what its handler discarded it for
}

// What every claim returns of a task t, in this order. A time is cheap as a float, which is exact
// to the microsecond for two centuries; most tasks were created when they were due; and the columns
// that few tasks use are one.
const rowColumns = `t.task_id, t.payload::text, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
       CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint END, outbox.optional_columns(t)`

// scanRows reads the rows of a claim, with further columns of the claim into extra, in order. It
// fails if there are more than limit.
func scanRows(rows *sql.Rows, taskType string, maxAttempts, limit int, extra func(*row) []any) ([]*row, error) {
	defer rows.Close()
	var out []*row
	for rows.Next() {
		r := &row{taskType: taskType, max: maxAttempts}
		var rest sql.NullString
		var createdAt sql.NullInt64
		into := append([]any{&r.id, &r.payload, &r.priority, &r.attempt, &r.runAt, &createdAt, &rest}, extra(r)...)
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if r.createdAt = r.runAt; createdAt.Valid {
			r.createdAt = createdAt.Int64
		}
		if err := r.setRest(rest.String); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	inOrder(out)
	return out, tooMany(len(out), limit)
}

// fromDriver is what scanRows does for one row.
func (r *row) fromDriver(values []driver.Value) error {
	r.id, r.payload, r.priority, r.attempt = pg.Integer(values[0]), pg.Text(values[1]), int(pg.Integer(values[2])), int(pg.Integer(values[3]))
	r.runAt = pg.Integer(values[4])
	if r.createdAt = r.runAt; values[5] != nil {
		r.createdAt = pg.Integer(values[5])
	}
	return r.setRest(pg.Text(values[6]))
}

// fromText reads a task as outbox.claim_tasks returns it. A text costs the client less than
// columns.
func (r *row) fromText(taken string) (xid string, err error) {
	var field [7]string
	more := true
	for i := range field {
		field[i], taken, more = strings.Cut(taken, "\x1f")
	}
	if !more {
		return "", errors.New("relay: a claimed task lacks fields: please report this")
	}
	number := func(s string) (n int64) {
		n, wrong := strconv.ParseInt(s, 10, 64)
		if wrong != nil {
			err = wrong
		}
		return n
	}
	r.id, r.priority, r.attempt, r.runAt, r.payload = number(field[0]), int(number(field[1])), int(number(field[2])), number(field[3]), taken
	if r.createdAt = r.runAt; field[4] != "" {
		r.createdAt = number(field[4])
	}
	if err != nil {
		return "", err
	}
	return field[5], r.setRest(field[6])
}

// scanTexts is scanRows for such a claim.
func scanTexts(rows *sql.Rows, taskType string, maxAttempts, limit int) (out []*row, xid string, err error) {
	defer rows.Close()
	for rows.Next() {
		var taken sql.NullString
		if err := rows.Scan(&taken); err != nil {
			return nil, "", err
		}
		if !taken.Valid {
			continue
		}
		r := &row{taskType: taskType, max: maxAttempts}
		if xid, err = r.fromText(taken.String); err != nil {
			return nil, "", err
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	inOrder(out)
	return out, xid, tooMany(len(out), limit)
}

// onlyOne takes what one row of a claim says for all.
type onlyOne struct{ text *string }

func (o onlyOne) Scan(v any) error {
	if v != nil {
		*o.text = pg.Text(v)
	}
	return nil
}

// tooMany is the error of a claim that took more than its limit.
func tooMany(took, limit int) error {
	if took > limit {
		return fmt.Errorf("relay: a claim of at most %d tasks took %d: please report this", limit, took)
	}
	return nil
}

// inOrder sorts the rows of a claim by the order of claiming, which RETURNING does not keep.
func inOrder(rows []*row) {
	slices.SortFunc(rows, (*row).compare)
}

func (r *row) compare(s *row) int {
	return cmp.Or(cmp.Compare(r.priority, s.priority), cmp.Compare(r.attempt, s.attempt), cmp.Compare(r.id, s.id))
}

// setRest takes the columns that few tasks use, as outbox.optional_columns returns them.
func (r *row) setRest(rest string) error {
	if rest == "" {
		return nil
	}
	var maxAttempts, timeoutMS, attemptedAt *int64
	var lastError, uniqueKey, orderingKey *string
	var headers json.RawMessage
	c := &r.optional
	columns := [...]any{&attemptedAt, &maxAttempts, &headers, &lastError, &uniqueKey, &c.uniqueUntilDone, &timeoutMS, &c.iterations, &orderingKey, &c.skipFailed}
	if err := json.Unmarshal([]byte(rest), &columns); err != nil {
		return fmt.Errorf("relay: task %d: %w", r.id, err)
	}
	r.attemptedAt, r.rowMax, c.timeoutMS = nullInt(attemptedAt), nullInt(maxAttempts), nullInt(timeoutMS)
	r.lastError, c.uniqueKey, c.orderingKey = nullString(lastError), nullString(uniqueKey), nullString(orderingKey)
	if len(headers) > 0 && string(headers) != "null" {
		r.headers = sql.NullString{String: string(headers), Valid: true}
	}
	if r.rowMax.Valid {
		r.max = int(r.rowMax.Int64)
	}
	return nil
}

func nullInt(p *int64) sql.NullInt64 {
	if p == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: *p, Valid: true}
}

func nullString(p *string) sql.NullString {
	if p == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: *p, Valid: true}
}

// task is what the handler gets; attempt counts the run that begins.
func (r *row) task(attempt int) *task {
	var t task
	r.fill(&t, attempt)
	return &t
}

func (r *row) fill(t *task, attempt int) {
	*t = task{ID: r.id, Type: r.taskType, Payload: json.RawMessage(r.payload), Attempt: attempt, MaxAttempts: r.max,
		Priority: r.priority, OrderingKey: r.orderingKey.String, RunAt: time.UnixMicro(r.runAt), CreatedAt: time.UnixMicro(r.createdAt), Iterations: r.iterations, LastError: r.lastError.String}
	if r.headers.Valid {
		var values map[string]any // plain SQL may have stored other values than strings
		if json.Unmarshal([]byte(r.headers.String), &values) == nil {
			t.Headers = make(map[string]string, len(values))
			for k, v := range values {
				if s, ok := v.(string); ok {
					t.Headers[k] = s
				} else if b, err := json.Marshal(v); err == nil {
					t.Headers[k] = string(b)
				}
			}
		}
	}
}

func ids(rows []*row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.id
	}
	return out
}
