package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/timeline"
)

type Task = outbox.Task[json.RawMessage]

// Row is a claimed task: the columns that a relay decides on, and the rest as it was claimed, which
// the relay hands back unread to put_back, bury or keep (schema/functions/rows.sql).
type Row struct {
	ID                int64
	TaskType          string
	Priority, Attempt int // the columns as before the claim: a lease counts its run at once
	Max               int
	RunAt, createdAt  int64  // µs since 1970
	Began             *int64 // this run, as attempted_at; nil: it began with the transaction
	Payload           string
	rest              string   // an object of JSON; "" if the task uses none of its columns
	read              *columns // of rest; nil: none
	LostBy            string   // a Leased task: the relay that died while it ran it; "" for none
	Lost              int      // runs that died with their process, beyond attempt
	Undecided         []string // tokens of runs whose relay may still live
	Isolation         Isolation
	Place             string  // its ctid: of a Leased task after the claim, in a group before it
	Finish            *Finish // of a finished task of a type with a history

	askedAt  time.Time // when PostgreSQL's clock was asked for, by the process's
	answered int64     // its answer, in µs since 1970
}

// Finish is how a finished task ended, for the history.
type Finish struct {
	Outcome string
	Err     error  // of a result that finishes the task, such as Discard; nil: none
	Result  string // of Task.SetResult, as JSON; "": none
}

// columns are those of the rest that a relay reads. A new option of a task is here only if the relay
// decides on it or its handler gets it.
type columns struct {
	AttemptedAt     time.Time       `json:"attempted_at"`
	MaxAttempts     *int            `json:"max_attempts"`
	Headers         json.RawMessage `json:"headers"`
	LastError       string          `json:"last_error"`
	TimeoutMS       *int64          `json:"timeout_ms"` // of one run
	Iterations      int             `json:"iterations"`
	OrderingKey     *string         `json:"ordering_key"`
	GroupKey        *string         `json:"group_key"`
	SkipFailed      bool            `json:"skip_failed"` // a failed attempt takes the task out of its key's order
	UniqueKey       *string         `json:"unique_key"`
	UniqueUntilDone bool            `json:"unique_until_done"`
	ExpiresUS       *int64          `json:"expires_us"`  // expires_at, which may have an offset that Go cannot parse
	PastExpiry      bool            `json:"past_expiry"` // by the claim
	Timeline        json.RawMessage `json:"timeline"`
}

var noColumns columns

// uses are the columns of the rest, not to be changed.
func (r *Row) uses() *columns { return cmp.Or(r.read, &noColumns) }

// Timeout is that of one run, if the task has one of its own.
func (r *Row) Timeout() (d time.Duration, own bool) {
	if ms := r.uses().TimeoutMS; ms != nil {
		return time.Duration(*ms) * time.Millisecond, true
	}
	return 0, false
}

// handedBack is the row as it was claimed with what changes, for the functions of rows.sql.
func (r *Row) handedBack(changes map[string]any) map[string]any {
	out := map[string]any{"task_id": r.ID, "task_type": r.TaskType, "priority": r.Priority,
		"run_us": r.RunAt, "created_us": r.createdAt, "payload": json.RawMessage(r.Payload)}
	if r.rest != "" {
		out["rest"] = json.RawMessage(r.rest)
	}
	maps.Copy(out, changes)
	return out
}

// FromText reads what outbox.claimed returns.
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
	if r.LostBy == "" { // the claim has counted this run; that of a suspect is counted when it begins
		r.Attempt--
	}
	if r.read != nil { // it has the time of this run
		r.NoteTime(r.read.AttemptedAt.UnixMicro())
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

func (r *Row) set(id, priority, attempt, runAt, createdAt, payload, rest string) (err error) {
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
	return r.setRest(rest)
}

// TooMany is the error of a claim that took more than its limit.
func TooMany(took, limit int) error {
	if took > limit {
		return fmt.Errorf("relay: a claim of at most %d tasks took %d: please report this", limit, took)
	}
	return nil
}

func (r *Row) Compare(s *Row) int {
	return cmp.Or(cmp.Compare(r.Priority, s.Priority), cmp.Compare(r.Attempt, s.Attempt), cmp.Compare(r.ID, s.ID))
}

// setRest takes the columns that few tasks use, as outbox.rest returns them.
func (r *Row) setRest(rest string) error {
	if rest == "" {
		return nil
	}
	r.rest, r.read = rest, new(columns)
	if err := json.Unmarshal([]byte(rest), r.read); err != nil {
		return fmt.Errorf("relay: task %d: %w", r.ID, err)
	}
	if r.read.MaxAttempts != nil {
		r.Max = *r.read.MaxAttempts
	}
	return nil
}

// Fill makes t what the handler gets; attempt counts the run that begins.
func (r *Row) Fill(t *Task, of *Identity, attempt int) {
	*t = Task{ID: r.ID, DatabaseID: of.DatabaseID(), Type: r.TaskType, Payload: json.RawMessage(r.Payload), Attempt: attempt, MaxAttempts: r.Max,
		Priority: r.Priority, RunAt: time.UnixMicro(r.RunAt), CreatedAt: time.UnixMicro(r.createdAt)}
	if r.read == nil {
		return
	}
	t.Iterations, t.LastError = r.read.Iterations, r.read.LastError
	t.Headers, t.FailedAttempts = Headers(r.read.Headers), attemptErrors(r.read.Timeline)
	if r.read.OrderingKey != nil {
		t.OrderingKey = *r.read.OrderingKey
	}
	if r.read.ExpiresUS != nil {
		at := time.UnixMicro(*r.read.ExpiresUS)
		t.ExpiresAt = &at
	}
}

// Expired reports whether the claim came after the time by which the task was to begin, and by the row
// it has not: no attempt is counted, and no iteration has ended.
func (r *Row) Expired() bool {
	return r.uses().PastExpiry && r.Attempt+r.uses().Iterations == 0
}

// Throttled reports whether the last run was throttled.
func (r *Row) Throttled() bool {
	all := timeline.Read(r.uses().Timeline)
	return len(all) > 0 && all[len(all)-1].Event == timeline.Throttled
}

// FirstFailure is when the first run failed or was throttled since the task was enqueued, replaced
// or redriven.
func (r *Row) FirstFailure() (at time.Time, failed bool) {
	for _, e := range timeline.Read(r.uses().Timeline) {
		switch {
		case e.Event == timeline.Redriven || e.Event == timeline.Replaced:
			failed = false
		case !failed && e.At != nil:
			at, failed = *e.At, true
		}
	}
	return at, failed
}

// NoteTime notes PostgreSQL's clock at this moment, in µs since 1970.
func (r *Row) NoteTime(micros int64) { r.askedAt, r.answered = time.Now(), micros }

// Advance has the row's clock go on by a time that a test does not wait for.
func (r *Row) Advance(by time.Duration) {
	now := time.Now()
	r.askedAt, r.answered = now, r.At(now).Add(by).UnixMicro()
	if us := r.uses().ExpiresUS; by > 0 && us != nil {
		r.read.PastExpiry = r.answered >= *us
	}
}

// At is a time of the process's clock by PostgreSQL's clock, if that was noted.
func (r *Row) At(t time.Time) time.Time {
	if r.askedAt.IsZero() {
		return t
	}
	return time.UnixMicro(r.answered).Add(t.Sub(r.askedAt))
}

// lostInARow is how many of the last attempts were lost.
func (r *Row) lostInARow() (n int) {
	for _, e := range timeline.Read(r.uses().Timeline) {
		if n++; e.Event != timeline.Lost {
			n = 0
		}
	}
	return n
}

// Codec is the name of the codec that has encoded the payload; "" without one.
func (r *Row) Codec() string {
	if r.read == nil {
		return ""
	}
	return Headers(r.read.Headers)[codec.Header]
}

// Headers are those of a task as its handler gets them. Plain SQL may have stored other values than
// strings, which are JSON then.
func Headers(column json.RawMessage) map[string]string {
	var values map[string]any
	if len(column) == 0 || json.Unmarshal(column, &values) != nil || values == nil {
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

// Isolation says beside which others a task may run in its process. The more of its runs were lost
// in a row, the more likely it is the one that ends the process. A run that its process outlives
// ends the row.
type Isolation int

const (
	NotLost     Isolation = iota
	LostOnce              // beside all but a LastAttempt
	Grouped               // lost twice: beside a few such
	Alone                 // lost three times, or two attempts are left: beside none that was lost twice
	LastAttempt           // one attempt is left: beside none that was lost
)

func (i Isolation) String() string {
	return [...]string{"none", "none", "group", "alone", "alone"}[i]
}

// isolationOf is that of a task of which so many runs in a row were lost, with so many attempts
// left.
func isolationOf(lost, left int) Isolation {
	switch {
	case lost == 0:
		return NotLost
	case left <= 1:
		return LastAttempt
	case lost >= 3 || left == 2:
		return Alone
	case lost == 2:
		return Grouped
	}
	return LostOnce
}

// maxEventError is of how many bytes an error is in the timeline.
const maxEventError = 1 << 10

func cut(text string) string {
	if len(text) <= maxEventError {
		return text
	}
	end := maxEventError
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// attemptErrors are the attempts with the present payload in a timeline, for the handler.
func attemptErrors(column json.RawMessage) (all []outbox.FailedAttempt) {
	for _, e := range timeline.Read(column) {
		switch e.Event {
		case timeline.Replaced:
			all = nil
			continue
		case timeline.Redriven, timeline.Dead, timeline.Throttled:
			continue
		}
		a := outbox.FailedAttempt{Attempt: e.Attempt, RelayID: e.Relay, Duration: time.Duration(e.Micros) * time.Microsecond, Error: e.Error}
		if e.At != nil {
			a.At = *e.At
		}
		if a.Error == "" {
			a.Error = e.Event
		}
		all = append(all, a)
	}
	return all
}
