package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
)

type Task = outbox.Task[json.RawMessage]

// Row is a claimed task, with all columns that writing it back needs. Its 288 bytes are a size class
// of Go's allocator.
type Row struct {
	ID                 int64
	TaskType           string
	Priority, Attempt  int // the columns as claimed
	Max                int
	rowMax             *int64
	RunAt, createdAt   int64  // µs since 1970
	attemptedAt        *int64 // of the run before
	Began              *int64 // this run, as attempted_at; nil: it began with the transaction
	Payload            string
	headers, lastError *string
	optional
	LostBy    string   // a Leased task: the relay that died while it ran it; "" for none
	Lost      int      // runs that died with their process, beyond attempt
	Undecided []string // tokens of runs whose relay may still live
	Isolation Isolation
	Place     string // its ctid: of a Leased task after the claim, in a group before it
	Discarded error  // what its handler discarded it for

	askedAt  time.Time // when PostgreSQL's clock was asked for, by the process's
	answered int64     // its answer, in µs since 1970
}

// RowText is a task t as every claim returns it: its fields with U+001F between them, which no JSON
// has. A text costs the client less than columns. Most tasks were created when they were due, so
// created_at is empty then; and the columns that few tasks use are one.
const RowText = `concat_ws(E'\x1f', t.task_id, t.priority, t.attempt, (date_part('epoch', t.run_at) * 1000000)::bigint,
       CASE WHEN t.created_at <> t.run_at THEN (date_part('epoch', t.created_at) * 1000000)::bigint::text ELSE '' END,
       pg_current_xact_id(), COALESCE(outbox.optional_columns(t), ''), t.payload)`

// FromText reads a RowText.
func (r *Row) FromText(text string) (xid string, err error) {
	var f [8]string
	if err := split(text, "\x1f", f[:]); err != nil {
		return "", err
	}
	return f[5], r.set(f[0], f[1], f[2], f[3], f[4], f[7], f[6])
}

// FromLine reads a line of lease_tasks.
func (r *Row) FromLine(line string) error {
	var f [9]string
	if err := split(line, "\t", f[:]); err != nil {
		return err
	}
	r.Place, r.LostBy = f[1], f[6]
	err := r.set(f[0], f[2], f[3], f[4], f[5], f[7], f[8])
	if r.attemptedAt != nil { // this run's
		r.NoteTime(*r.attemptedAt)
	}
	return err
}

// split fills all fields with what separators are between. The last one may have separators.
func split(text, separator string, fields []string) error {
	last := len(fields) - 1
	for i := range fields[:last] {
		more := false
		if fields[i], text, more = strings.Cut(text, separator); !more {
			return errors.New("relay: a claimed task lacks fields: please report this")
		}
	}
	fields[last] = text
	return nil
}

func (r *Row) set(id, priority, attempt, runAt, createdAt, payload, optional string) (err error) {
	number := func(s string) (n int64) {
		n, wrong := strconv.ParseInt(s, 10, 64)
		if wrong != nil {
			err = fmt.Errorf("relay: a claimed task: %w", wrong)
		}
		return n
	}
	r.ID, r.Priority, r.Attempt, r.RunAt, r.Payload = number(id), int(number(priority)), int(number(attempt)), number(runAt), payload
	if r.createdAt = r.RunAt; createdAt != "" {
		r.createdAt = number(createdAt)
	}
	if err != nil {
		return err
	}
	return r.setRest(optional)
}

// TooMany is the error of a claim that took more than its limit.
func TooMany(took, limit int) error {
	if took > limit {
		return fmt.Errorf("relay: a claim of at most %d tasks took %d: please report this", limit, took)
	}
	return nil
}

// Unclaimed is the attempt of a leased task as before its claim, which counts that of all but
// suspects.
func (r *Row) Unclaimed() int {
	if r.LostBy != "" {
		return r.Attempt
	}
	return r.Attempt - 1
}

func (r *Row) Compare(s *Row) int {
	return cmp.Or(cmp.Compare(r.Priority, s.Priority), cmp.Compare(r.Attempt, s.Attempt), cmp.Compare(r.ID, s.ID))
}

// setRest takes the columns that few tasks use, as outbox.optional_columns returns them.
func (r *Row) setRest(rest string) error {
	if rest == "" {
		return nil
	}
	var headers, timeline json.RawMessage
	columns := [...]any{&r.attemptedAt, &r.rowMax, &headers, &r.lastError, &r.uniqueKey, &r.uniqueUntilDone, &r.TimeoutMS, &r.iterations, &r.orderingKey, &r.skipFailed, &timeline}
	if err := json.Unmarshal([]byte(rest), &columns); err != nil {
		return fmt.Errorf("relay: task %d: %w", r.ID, err)
	}
	r.headers, r.timeline = jsonText(headers), jsonText(timeline)
	if r.rowMax != nil {
		r.Max = int(*r.rowMax)
	}
	return nil
}

// jsonText is a JSON column's text; nil for NULL.
func jsonText(column json.RawMessage) *string {
	if len(column) == 0 || string(column) == "null" {
		return nil
	}
	text := string(column)
	return &text
}

// Fill makes t what the handler gets; attempt counts the run that begins.
func (r *Row) Fill(t *Task, of *Identity, attempt int) {
	*t = Task{ID: r.ID, DatabaseID: of.DatabaseID(), Type: r.TaskType, Payload: json.RawMessage(r.Payload), Attempt: attempt, MaxAttempts: r.Max,
		Priority: r.Priority, RunAt: time.UnixMicro(r.RunAt), CreatedAt: time.UnixMicro(r.createdAt), Iterations: r.iterations}
	if r.orderingKey != nil {
		t.OrderingKey = *r.orderingKey
	}
	if r.lastError != nil {
		t.LastError = *r.lastError
	}
	if r.headers != nil {
		t.Headers = Headers(*r.headers)
	}
	if r.timeline != nil {
		t.Errors = attemptErrors(r.timeline)
	}
}

// Throttled reports whether the last run was throttled.
func (r *Row) Throttled() bool {
	all := readEvents(r.timeline)
	return len(all) > 0 && all[len(all)-1].Event == EventThrottled
}

// FirstFailure is when the first run failed or was throttled since the task was enqueued, replaced
// or redriven.
func (r *Row) FirstFailure() (at time.Time, failed bool) {
	for _, e := range readEvents(r.timeline) {
		switch {
		case e.Event == EventRedriven || e.Event == EventReplaced:
			failed = false
		case !failed && e.At != nil:
			at, failed = *e.At, true
		}
	}
	return at, failed
}

// NoteTime notes PostgreSQL's clock at this moment, in µs since 1970.
func (r *Row) NoteTime(micros int64) { r.askedAt, r.answered = time.Now(), micros }

// At is a time of the process's clock by PostgreSQL's clock, if that was noted.
func (r *Row) At(t time.Time) time.Time {
	if r.askedAt.IsZero() {
		return t
	}
	return time.UnixMicro(r.answered).Add(t.Sub(r.askedAt))
}

// lostInARow is how many of the last attempts were lost.
func (r *Row) lostInARow() (n int) {
	for _, e := range readEvents(r.timeline) {
		if n++; e.Event != EventLost {
			n = 0
		}
	}
	return n
}

// Headers are those of a task as its handler gets them. Plain SQL may have stored other values than
// strings, which are JSON then.
func Headers(column string) map[string]string {
	var values map[string]any
	if json.Unmarshal([]byte(column), &values) != nil {
		return nil
	}
	out := make(map[string]string, len(values))
	for k, v := range values {
		if s, ok := v.(string); ok {
			out[k] = s
		} else if b, err := json.Marshal(v); err == nil {
			out[k] = string(b)
		}
	}
	return out
}

func IDs(rows []*Row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.ID
	}
	return out
}
