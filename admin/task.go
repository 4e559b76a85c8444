package admin

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/key"
	"github.com/txoutbox/outbox/internal/timeline"
)

// State is where a task is.
type State string

// The states of a task. A task that a Tx or Batch handler works on is StateReady until its claim commits, and has
// a [Run].
const (
	StateReady     State = "ready"
	StateScheduled State = "scheduled" // until a relay makes it ready at its RunAt; its Attempt is 0
	StateRetrying  State = "retrying"  // likewise, with an Attempt above 0
	StateLeased    State = "leased"    // a Leased handler has it
	StateWaiting   State = "waiting"   // for another task of its ordering key, or for a place of its group key
	StateDead      State = "dead"      // a dead letter
	StateFinished  State = "finished"  // of a type that keeps them (handlers.Retention)
)

// Task is one task, without what may be secret; see [Payload].
type Task struct {
	ID          int64
	Key         string // its idempotency key, and the id of its event: outbox.Task.Key
	Type        string
	State       State
	Priority    int
	Attempt     int // attempts begun and counted
	MaxAttempts int // its own; 0: as its handler was registered. A dead letter has the limit that held
	CreatedAt   time.Time
	RunAt       time.Time
	AttemptedAt time.Time     // zero: never
	EndedAt     time.Time     // died or finished; zero for others
	KeepUntil   time.Time     // of a finished task
	Reason      outbox.Reason // of a dead letter
	Outcome     string        // of a finished task what it ended as: a relay.Outcome
	LastError   string        // at most 4 kB; of a finished task of a result such as handlers.Discard
	Timeout     time.Duration // its own; 0: as its handler was registered
	Iterations  int           // the number of RunAgain results of its handler
	UniqueUntil time.Time     // its unique key is taken until then (outbox.For); zero: no longer than it waits
	ExpiresAt   time.Time     // it does not run if no attempt has begun by then; zero: it does not expire
	LeasedUntil time.Time     // of a leased task with a timeout or more time; zero: while its relay is alive
	RelayID     string        // leased: the relay that has it; else "", or the relay that died while it ran the task
	// CancelRequestedAt is when it was first asked to end; zero: nobody has. Only Client.Task reads it.
	CancelRequestedAt time.Time
	Progress          *Progress // while it runs, if its handler tells; only Client.Task reads it
	Runs              []Run     // under way or lost, the oldest first; only Client.Task reads them
	Timeline          []Event   // at most 20 events, the oldest first, and its end; only Client.Task reads it
}

// Progress is how far a running task is: outbox.Task.SetProgress.
type Progress struct {
	Fraction float64   `json:"fraction"` // from 0 to 1
	Message  string    `json:"message"`
	At       time.Time `json:"at"` // when the handler told it
}

// The columns of a Task in each table. A new column of task is in all of them. The state is as
// outbox.kind_of has it, which older schemas lack, and viewers without their new rights.
const (
	sharedColumns = `t.task_id, t.task_type,
       CASE WHEN t.state = 'scheduled' AND t.attempt > 0 THEN 'retrying' ELSE t.state END AS state,
       t.priority, t.attempt, COALESCE(t.max_attempts, 0) AS max_attempts,
       t.created_at, t.run_at, t.attempted_at, COALESCE(t.last_error, '') AS last_error,
       COALESCE(t.timeout_ms, 0) AS timeout_ms, t.iterations, t.expires_at, t.unique_until, t.leased_until,
       COALESCE(t.relay_id::text, '') AS relay_id, COALESCE((SELECT database_id::text FROM outbox.identity), '') AS database_id, `

	taskColumns = sharedColumns + `NULL::timestamptz AS ended_at, NULL::timestamptz AS keep_until,
       '' AS reason, '' AS outcome`
	deadColumns = sharedColumns + `t.died_at, NULL::timestamptz, t.reason, ''`
	doneColumns = sharedColumns + `t.finished_at, t.keep_until, '',
       COALESCE(t.outcome, CASE WHEN t.last_error IS NULL THEN 'done' ELSE 'discarded' END)`
)

func scanTask(row scanner, t *Task) error { return t.scan(row) }

// scan reads the columns, and what follows them.
func (t *Task) scan(row scanner, more ...any) error {
	var attempted, ended, kept, expires, unique, leased sql.NullTime
	var timeout int64
	var databaseID string
	err := row.Scan(append([]any{
		&t.ID, &t.Type, &t.State, &t.Priority, &t.Attempt, &t.MaxAttempts, &t.CreatedAt, &t.RunAt, &attempted,
		&t.LastError, &timeout, &t.Iterations, &expires, &unique, &leased, &t.RelayID, &databaseID, &ended, &kept,
		&t.Reason, &t.Outcome,
	}, more...)...)
	t.Key = key.Of(databaseID, t.ID)
	t.AttemptedAt, t.EndedAt, t.KeepUntil, t.LeasedUntil = attempted.Time, ended.Time, kept.Time, leased.Time
	t.ExpiresAt, t.UniqueUntil, t.Timeout = expires.Time, unique.Time, time.Duration(timeout)*time.Millisecond
	return err
}

// A task that came back after it was finished, as after a failover, is not in the history.
const taskSQL = `/* outbox: inspect a task */
SELECT ` + taskColumns + `, t.timeline, (SELECT min(c.requested_at) FROM outbox.cancel c WHERE c.task_id = $1) AS asked,
       has_column_privilege('outbox.relay', 'progress', 'SELECT') AS may_see, 1 AS place
  FROM outbox.task t WHERE t.task_id = $1
UNION ALL
SELECT ` + deadColumns + `, t.timeline, NULL, false, 2 FROM outbox.dead_task t WHERE t.task_id = $1
UNION ALL
SELECT ` + doneColumns + `, t.timeline, NULL, false, 3 FROM outbox.done_task t WHERE t.task_id = $1
 ORDER BY place LIMIT 1`

// Task returns a task wherever it is, with its runs. The error is ErrNotFound if it is nowhere.
func (c *Client) Task(ctx context.Context, taskID int64) (Task, error) {
	var t Task
	err := c.read(func(q outbox.Querier) error {
		var timeline []byte
		var maySee bool
		var asked sql.NullTime
		var place int
		err := t.scan(q.QueryRowContext(ctx, c.schema.SQL(taskSQL), taskID), &timeline, &asked, &maySee, &place)
		if err == nil && maySee {
			t.Progress, err = c.progressOf(ctx, q, taskID)
		}
		if err == nil {
			t.CancelRequestedAt = asked.Time
			t.readTimeline(timeline)
			t.Runs, err = c.runsOf(ctx, q, taskID, t.Type)
		}
		return err
	})
	if err != nil {
		return Task{}, failedTask("get", taskID, err)
	}
	return t, nil
}

// Viewers whose roles are of the version before may not read it: then it is not shown.
const progressSQL = `/* outbox: inspect the progress of a task */
SELECT progress -> $1::bigint::text FROM outbox.relay
 WHERE progress ? $1::bigint::text AND alive_until > clock_timestamp()
 ORDER BY progress -> $1::bigint::text ->> 'at' DESC LIMIT 1`

func (c *Client) progressOf(ctx context.Context, q outbox.Querier, taskID int64) (*Progress, error) {
	var text []byte
	err := q.QueryRowContext(ctx, c.schema.SQL(progressSQL), taskID).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	var p Progress
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return &p, err
}

// TaskByKey returns the task with a key, as [Client.Task] does by an id. The consumer of an event
// or the receiver of a webhook knows the key. The error is ErrNotFound also if the key is another
// database's, or from before this one was adopted.
func (c *Client) TaskByKey(ctx context.Context, taskKey string) (Task, error) {
	id, ok := key.TaskID(taskKey)
	if !ok {
		return Task{}, invalid("key: %.40q is not the key of a task", taskKey)
	}
	t, err := c.Task(ctx, id)
	if err == nil && t.Key != taskKey {
		return Task{}, fmt.Errorf("%w: the key %s is of another database", ErrNotFound, taskKey)
	}
	return t, err
}

// failedTask wraps an error of a statement that looks for a task.
func failedTask(what string, taskID int64, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	}
	return failed(fmt.Sprintf("%s task %d", what, taskID), err)
}

// Run is a run of a task, in the journal of Tx and Batch handlers or by its lease.
type Run struct {
	TaskIDs   []int64 // several for a batch, at most 1,000 of them
	Type      string  // "" where it is not known: the task is gone
	RelayID   string
	StartedAt time.Time
	// Lost: its relay is dead, or lost the run's connection, or the lease has run out. The run counts as an
	// attempt when the task is claimed next.
	Lost bool
}

// maxRuns is how many runs are read of a task, or of a relay.
const maxRuns = 200

// lost is whether a run r of the journal is: its relay is dead, or its connection gone.
const lost = `(r.lost_connection
        OR NOT EXISTS (SELECT 1 FROM outbox.relay l
                        WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp()))`

// leaseLost is whether any relay may take over the leased task t.
const leaseLost = `(COALESCE(t.leased_until < clock_timestamp(), false)
        OR NOT EXISTS (SELECT 1 FROM outbox.relay l
                        WHERE l.relay_id = t.relay_id AND l.alive_until > clock_timestamp()))`

// A task is leased or in the journal. Its state is asked for in a way that no index of leased tasks
// fits.
const taskRunsSQL = `/* outbox: inspect the runs of a task */
(SELECT r.relay_id::text, to_json(ARRAY[r.task_id])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r WHERE r.task_id = $1::bigint AND r.task_ids IS NULL LIMIT $3)
UNION ALL
(SELECT r.relay_id::text, to_json(r.task_ids[1:1000])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r
  WHERE r.task_ids IS NOT NULL AND r.last_id >= $1 AND r.first_id <= $1 AND $1 = ANY (r.task_ids) LIMIT $3)
UNION ALL
SELECT t.relay_id::text, to_json(ARRAY[t.task_id])::text, $2::text, COALESCE(t.attempted_at, t.run_at),
       ` + leaseLost + `
  FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'leased'`

// runsOf reads the runs of a task.
func (c *Client) runsOf(ctx context.Context, q outbox.Querier, taskID int64, taskType string) ([]Run, error) {
	runs, err := rows(ctx, q, c.schema.SQL(taskRunsSQL), []any{taskID, taskType, maxRuns}, scanRun)
	return oldest(runs), err
}

func scanRun(row scanner, r *Run) error {
	var ids string
	if err := row.Scan(&r.RelayID, &ids, &r.Type, &r.StartedAt, &r.Lost); err != nil {
		return err
	}
	return json.Unmarshal([]byte(ids), &r.TaskIDs)
}

// oldest are the first of the runs to begin.
func oldest(runs []Run) []Run {
	slices.SortStableFunc(runs, func(a, b Run) int { return a.StartedAt.Compare(b.StartedAt) })
	return runs[:min(len(runs), maxRuns)]
}

// Payload is the payload of a task and the other texts that need the right to see payloads.
type Payload struct {
	Payload     json.RawMessage
	Headers     json.RawMessage // nil: none
	UniqueKey   string          // "": none, or finished
	OrderingKey string          // "": none, or finished
	GroupKey    string          // "": none, or finished
	Result      json.RawMessage // of a finished task: outbox.Task.SetResult; nil: none
}

// Codec is the name of the codec that has encoded the payload, as outbox.Codec says; "" without one.
func (p Payload) Codec() string {
	var headers struct {
		Codec string `json:"outbox-codec"`
	}
	_ = json.Unmarshal(p.Headers, &headers) // another value is no name
	return headers.Codec
}

// Rights are by table, and an operator may read the payloads of dead letters only. So a statement
// first finds the table of the task.
const placeSQL = `/* outbox: where a task is */
SELECT place FROM (
  SELECT 1 AS place FROM outbox.task t WHERE t.task_id = $1
   UNION ALL SELECT 2 FROM outbox.dead_task t WHERE t.task_id = $1
   UNION ALL SELECT 3 FROM outbox.done_task t WHERE t.task_id = $1) p
 ORDER BY place LIMIT 1`

var payloadSQL = map[int]string{
	1: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, COALESCE(unique_key, ''), COALESCE(ordering_key, ''), COALESCE(group_key, ''), NULL
  FROM outbox.task WHERE task_id = $1`,
	2: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, COALESCE(unique_key, ''), COALESCE(ordering_key, ''), COALESCE(group_key, ''), NULL
  FROM outbox.dead_task WHERE task_id = $1`,
	3: `/* outbox: inspect a payload */
SELECT payload::text, headers::text, '', '', '', result::text FROM outbox.done_task WHERE task_id = $1`,
}

// Payload returns a task's payload, headers and keys, wherever it is. The error is ErrNotFound if
// it is nowhere.
//
// It needs SELECT on the payload, headers and keys of the table where the task is. Of the roles of
// https://github.com/txoutbox/outbox/blob/main/docs/security.md the worker and the owner have it,
// and the operator for dead letters. Others get PostgreSQL's error with SQLSTATE 42501
// (insufficient_privilege), after which a transaction is to be rolled back.
func (c *Client) Payload(ctx context.Context, taskID int64) (Payload, error) {
	var out Payload
	err := c.read(func(q outbox.Querier) (err error) {
		for range 5 { // it may have gone elsewhere between the two statements
			var place int
			if err := q.QueryRowContext(ctx, c.schema.SQL(placeSQL), taskID).Scan(&place); err != nil {
				return err
			}
			err = q.QueryRowContext(ctx, c.schema.SQL(payloadSQL[place]), taskID).
				Scan((*[]byte)(&out.Payload), (*[]byte)(&out.Headers), &out.UniqueKey, &out.OrderingKey, &out.GroupKey,
					(*[]byte)(&out.Result))
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		return err
	})
	if err != nil {
		return Payload{}, failedTask("get the payload of", taskID, err)
	}
	return out, nil
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventFailed    EventKind = "failed"     // an attempt
	EventThrottled EventKind = "throttled"  // handlers.RetryAfter, which counted no attempt
	EventLost      EventKind = "lost"       // an attempt whose process died
	EventLeaseLost EventKind = "lease_lost" // an attempt whose lease ran out
	EventDead      EventKind = "dead"       // a dead letter without a call of the handler
	EventRedriven  EventKind = "redriven"   // a dead letter that became a task again
	EventReplaced  EventKind = "replaced"   // its payload, by outbox.OnConflict(outbox.ConflictReplace)
	EventFinished  EventKind = "finished"   // the last one of a task in the history
	EventDiscarded EventKind = "discarded"  // likewise
)

// Event is a change of a task's fate.
type Event struct {
	Kind     EventKind
	Attempt  int           // 0 of a redrive
	At       time.Time     // when it was recorded; of a lost run of Tx or Batch when it began
	RelayID  string        // "" where it is not known
	Duration time.Duration // of the handler's call; 0 where it is not known
	Error    string        // at most 1 kB; at the end of a finished task 4 kB
	Reason   outbox.Reason // of the event that made the task a dead letter
	Actor    string        // of a redrive; "" if it is unknown
	Times    int           // throttled: the number in a row; At is the first one
	LastAt   time.Time     // throttled several times: the last one
}

// readTimeline sets the Timeline: the entries of the column, and the end of a finished task. A dead
// letter without entries has its death.
func (t *Task) readTimeline(column []byte) {
	for _, e := range timeline.Read(column) {
		event := Event{
			Kind: EventKind(e.Event), Attempt: e.Attempt, RelayID: e.Relay, Duration: time.Duration(e.Micros) * time.Microsecond,
			Error: e.Error, Reason: outbox.Reason(e.Reason), Actor: e.By,
		}
		if e.At != nil {
			event.At = *e.At
		}
		if e.Last != nil {
			event.LastAt = *e.Last
		}
		if event.Kind == EventThrottled {
			event.Times = max(e.Times, 1)
		}
		t.Timeline = append(t.Timeline, event)
	}
	end := Event{Attempt: t.Attempt, At: t.EndedAt, Error: t.LastError}
	switch {
	case t.Outcome == "done":
		end.Kind = EventFinished
	case t.State == StateFinished:
		end.Kind = EventKind(t.Outcome)
	case t.State == StateDead && len(t.Timeline) == 0:
		end.Kind, end.Reason = EventDead, t.Reason
	default:
		return
	}
	t.Timeline = append(t.Timeline, end)
}
