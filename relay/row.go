package relay

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

type task = outbox.Task[json.RawMessage]

// row is a claimed task: all that is needed to write it back, as its row is deleted or may be.
type row struct {
	id                 int64
	taskType           string
	priority, attempt  int // the columns as claimed
	max                int
	rowMax             sql.NullInt64
	runAt, createdAt   int64 // µs since 1970
	attemptedAt        sql.NullInt64
	payload            string
	headers, lastError sql.NullString
	carried
	lostBy    sql.NullString // a Leased task: the relay that died while it ran it
	lost      int            // runs that died with their process, beyond attempt
	undecided []string       // tokens of runs whose relay may still live
	leasedAt  time.Time      // a Leased task: before its claim was sent
	discarded error          // what its handler discarded it for
}

// What every claim returns of a task t, in the order of scan.
const rowColumns = `t.task_id, t.priority, t.attempt, t.max_attempts,
       (extract(epoch FROM t.run_at) * 1000000)::bigint, (extract(epoch FROM t.created_at) * 1000000)::bigint,
       (extract(epoch FROM t.attempted_at) * 1000000)::bigint, t.payload::text, t.headers::text, t.last_error,
       ` + carriedColumns

// scanRows reads the rows of a claim, with further columns of the claim into extra, and sorts them by the
// order of claiming, which RETURNING does not keep. It fails if there are more than limit.
func scanRows(rows *sql.Rows, h *handlers.Handler, limit int, extra func(*row) []any) ([]*row, error) {
	defer rows.Close()
	var out []*row
	for rows.Next() {
		r := &row{taskType: h.Type, max: h.MaxAttempts}
		into := append([]any{&r.id, &r.priority, &r.attempt, &r.rowMax, &r.runAt, &r.createdAt, &r.attemptedAt,
			&r.payload, &r.headers, &r.lastError}, append(r.carried.scan(), extra(r)...)...)
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if r.rowMax.Valid {
			r.max = int(r.rowMax.Int64)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(out) > limit {
		return nil, fmt.Errorf("relay: a claim of at most %d tasks took %d: please report this", limit, len(out))
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.priority != b.priority {
			return a.priority < b.priority
		}
		if a.attempt != b.attempt {
			return a.attempt < b.attempt
		}
		return a.id < b.id
	})
	return out, nil
}

// task is what the handler gets; attempt counts the run that begins.
func (r *row) task(attempt int) *task {
	t := &task{ID: r.id, Type: r.taskType, Payload: json.RawMessage(r.payload), Attempt: attempt, MaxAttempts: r.max,
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
	return t
}

func ids(rows []*row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.id
	}
	return out
}

const maxErrorBytes = 4 << 10

// errorText is what last_error keeps of an error: valid UTF-8 without NUL, at most 4 kB.
func errorText(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	s := err.Error()
	if len(s) > maxErrorBytes+utf8.UTFMax {
		s = s[:maxErrorBytes+utf8.UTFMax] // the rest is never looked at
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxErrorBytes {
		return s
	}
	cut := maxErrorBytes
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
