package store

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

type Task = outbox.Task[json.RawMessage]

// Row is a claimed task: all that is needed to write it back, as its row is deleted or may be.
type Row struct {
	ID                 int64
	TaskType           string
	Priority, Attempt  int // the columns as claimed
	Max                int
	rowMax             sql.NullInt64
	RunAt, createdAt   int64         // µs since 1970
	attemptedAt        sql.NullInt64 // of the run before
	Began              sql.NullInt64 // this run, as attempted_at; else it began with the transaction
	Payload            string
	headers, lastError sql.NullString
	optional
	LostBy    sql.NullString // a Leased task: the relay that died while it ran it
	Lost      int            // runs that died with their process, beyond attempt
	Undecided []string       // tokens of runs whose relay may still live
	LeasedAt  time.Time      // a Leased task: before its claim was sent
	Place     string         // a Leased task: its ctid after the claim
	Discarded error          // what its handler discarded it for
}

// What every claim returns of a task t, in this order. A time is cheap as a float, which is exact
// to the microsecond for two centuries; most tasks were created when they were due; and the columns
// that few tasks use are one.
const RowColumns = `t.task_id, t.payload::text, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
       CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint END, outbox.optional_columns(t)`

// ScanRows reads the rows of a claim that returns RowColumns and the transaction's id, in the order
// of claiming. It fails if there are more than limit.
func ScanRows(rows *sql.Rows, taskType string, maxAttempts, limit int) (out []*Row, xid string, err error) {
	defer rows.Close()
	for rows.Next() {
		r := &Row{TaskType: taskType, Max: maxAttempts}
		var rest sql.NullString
		var createdAt sql.NullInt64
		if err := rows.Scan(&r.ID, &r.Payload, &r.Priority, &r.Attempt, &r.RunAt, &createdAt, &rest, &xid); err != nil {
			return nil, "", err
		}
		if r.createdAt = r.RunAt; createdAt.Valid {
			r.createdAt = createdAt.Int64
		}
		if err := r.setRest(rest.String); err != nil {
			return nil, "", err
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	InOrder(out)
	return out, xid, TooMany(len(out), limit)
}

// FromDriver reads what ScanRows reads, from a row of the driver.
func (r *Row) FromDriver(values []driver.Value) error {
	r.ID, r.Payload, r.Priority, r.Attempt = pg.Integer(values[0]), pg.Text(values[1]), int(pg.Integer(values[2])), int(pg.Integer(values[3]))
	r.RunAt = pg.Integer(values[4])
	if r.createdAt = r.RunAt; values[5] != nil {
		r.createdAt = pg.Integer(values[5])
	}
	return r.setRest(pg.Text(values[6]))
}

// FromText reads a task as outbox.claim_tasks returns it. A text costs the client less than
// columns.
func (r *Row) FromText(taken string) (xid string, err error) {
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
	r.ID, r.Priority, r.Attempt, r.RunAt, r.Payload = number(field[0]), int(number(field[1])), int(number(field[2])), number(field[3]), taken
	if r.createdAt = r.RunAt; field[4] != "" {
		r.createdAt = number(field[4])
	}
	if err != nil {
		return "", err
	}
	return field[5], r.setRest(field[6])
}

// ScanTexts is ScanRows for a claim that returns each task as one text.
func ScanTexts(rows *sql.Rows, taskType string, maxAttempts, limit int) (out []*Row, xid string, err error) {
	defer rows.Close()
	for rows.Next() {
		var taken sql.NullString
		if err := rows.Scan(&taken); err != nil {
			return nil, "", err
		}
		if !taken.Valid {
			continue
		}
		r := &Row{TaskType: taskType, Max: maxAttempts}
		if xid, err = r.FromText(taken.String); err != nil {
			return nil, "", err
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	InOrder(out)
	return out, xid, TooMany(len(out), limit)
}

// TooMany is the error of a claim that took more than its limit.
func TooMany(took, limit int) error {
	if took > limit {
		return fmt.Errorf("relay: a claim of at most %d tasks took %d: please report this", limit, took)
	}
	return nil
}

// InOrder sorts the rows of a claim by the order of claiming, which RETURNING does not keep.
func InOrder(rows []*Row) {
	slices.SortFunc(rows, (*Row).Compare)
}

func (r *Row) Compare(s *Row) int {
	return cmp.Or(cmp.Compare(r.Priority, s.Priority), cmp.Compare(r.Attempt, s.Attempt), cmp.Compare(r.ID, s.ID))
}

// setRest takes the columns that few tasks use, as outbox.optional_columns returns them.
func (r *Row) setRest(rest string) error {
	if rest == "" {
		return nil
	}
	var maxAttempts, timeoutMS, attemptedAt *int64
	var lastError, uniqueKey, orderingKey *string
	var headers json.RawMessage
	c := &r.optional
	columns := [...]any{&attemptedAt, &maxAttempts, &headers, &lastError, &uniqueKey, &c.uniqueUntilDone, &timeoutMS, &c.iterations, &orderingKey, &c.skipFailed}
	if err := json.Unmarshal([]byte(rest), &columns); err != nil {
		return fmt.Errorf("relay: task %d: %w", r.ID, err)
	}
	r.attemptedAt, r.rowMax, c.TimeoutMS = nullInt(attemptedAt), nullInt(maxAttempts), nullInt(timeoutMS)
	r.lastError, c.uniqueKey, c.orderingKey = nullString(lastError), nullString(uniqueKey), nullString(orderingKey)
	if len(headers) > 0 && string(headers) != "null" {
		r.headers = sql.NullString{String: string(headers), Valid: true}
	}
	if r.rowMax.Valid {
		r.Max = int(r.rowMax.Int64)
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

// Task is what the handler gets; attempt counts the run that begins.
func (r *Row) Task(attempt int) *Task {
	var t Task
	r.Fill(&t, attempt)
	return &t
}

func (r *Row) Fill(t *Task, attempt int) {
	*t = Task{ID: r.ID, Type: r.TaskType, Payload: json.RawMessage(r.Payload), Attempt: attempt, MaxAttempts: r.Max,
		Priority: r.Priority, OrderingKey: r.orderingKey.String, RunAt: time.UnixMicro(r.RunAt), CreatedAt: time.UnixMicro(r.createdAt), Iterations: r.iterations, LastError: r.lastError.String}
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

func IDs(rows []*Row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.ID
	}
	return out
}
