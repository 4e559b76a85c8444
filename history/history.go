// Package history reads what became of tasks that are finished, of the types whose handlers keep them
// (handlers.Keep). Relays write it in the transaction that finishes the task, and delete it when its time is over.
package history

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

var (
	// ErrNotFound is returned by Get for a task that is not kept: not finished, of a type that is not kept, or gone.
	ErrNotFound = errors.New("history: not found")
	// ErrInvalid is returned before any SQL is sent. The error names what is out of range.
	ErrInvalid = errors.New("history: invalid argument")
)

// Task is one finished task.
type Task struct {
	TaskID      int64
	Type        string
	Error       string // what its handler discarded it for; "": the handler succeeded
	Attempt     int    // that finished it
	Priority    int
	CreatedAt   time.Time
	RunAt       time.Time
	AttemptedAt time.Time // when that attempt began; zero: not known
	FinishedAt  time.Time
	KeepUntil   time.Time

	// Payload and Headers are as PostgreSQL keeps them: JSON, nil where there are no headers. Only Get reads them.
	Payload json.RawMessage
	Headers json.RawMessage
}

// Option changes one call.
type Option func(*settings)

type settings struct{ schema string }

// Schema names the PostgreSQL schema of the outbox if it is not "outbox".
func Schema(name string) Option { return func(s *settings) { s.schema = name } }

func newSettings(opts []Option) (settings, error) {
	s := settings{outbox.DefaultSchema}
	for _, o := range opts {
		if o == nil {
			return s, fmt.Errorf("%w: an Option is nil", ErrInvalid)
		}
		o(&s)
	}
	if !outbox.ValidSchema(s.schema) {
		return s, fmt.Errorf("%w: Schema(%q): use a lower-case name like outbox, letters, digits and _ only, at most 63 bytes", ErrInvalid, s.schema)
	}
	return s, nil
}

// sql puts the schema's name into a statement, which is written for the schema "outbox".
func (s settings) sql(query string) string {
	return strings.ReplaceAll(query, "outbox.", `"`+s.schema+`".`)
}

const columns = `task_id, task_type, COALESCE(last_error, ''), attempt, priority, created_at, run_at, attempted_at, finished_at, keep_until`

func (t *Task) scan(row interface{ Scan(...any) error }, more ...any) error {
	var attempted sql.NullTime
	err := row.Scan(append([]any{&t.TaskID, &t.Type, &t.Error, &t.Attempt, &t.Priority, &t.CreatedAt, &t.RunAt, &attempted, &t.FinishedAt, &t.KeepUntil}, more...)...)
	t.AttemptedAt = attempted.Time
	return err
}

const getSQL = `/* outbox: get a finished task */
SELECT ` + columns + `, payload::text, COALESCE(headers::text, '') FROM outbox.done_task WHERE task_id = $1`

// Get returns a finished task with its payload. The error is ErrNotFound if it is not kept.
func Get(ctx context.Context, q outbox.Querier, taskID int64, opts ...Option) (Task, error) {
	s, err := newSettings(opts)
	if err != nil {
		return Task{}, err
	}
	var t Task
	var payload, headers string
	err = t.scan(q.QueryRowContext(ctx, s.sql(getSQL), taskID), &payload, &headers)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Task{}, fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	case err != nil:
		return Task{}, fmt.Errorf("history: get task %d: %w", taskID, pgerr.WithoutDSN(err))
	}
	t.Payload = json.RawMessage(payload)
	if headers != "" {
		t.Headers = json.RawMessage(headers)
	}
	return t, nil
}

// Limits of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

const listSQL = `/* outbox: list finished tasks */
SELECT ` + columns + ` FROM outbox.done_task
 WHERE task_id < $1 AND ($2::text = '' OR task_type = $2::text)
 ORDER BY task_id DESC LIMIT $3`

// List returns up to limit finished tasks without their payloads, those that were enqueued last first: of one type, or of all
// if taskType is "". Only ids below before are listed; 0 and less are the beginning, and the last TaskID of a page where the next
// goes on. A limit of 0 means 100; the most is 1,000. It reads the history by id, so a rare type among millions of others takes its time.
func List(ctx context.Context, q outbox.Querier, taskType string, before int64, limit int, opts ...Option) ([]Task, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = defaultPage
	}
	if limit < 0 || limit > maxPage {
		return nil, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxPage, defaultPage)
	}
	if !utf8.ValidString(taskType) || strings.ContainsRune(taskType, 0) {
		return nil, fmt.Errorf("%w: task type %q: it must be valid UTF-8 without NUL", ErrInvalid, taskType)
	}
	if before <= 0 {
		before = math.MaxInt64
	}
	rows, err := q.QueryContext(ctx, s.sql(listSQL), before, taskType, limit)
	if err != nil {
		return nil, fmt.Errorf("history: list: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var out []Task
	for rows.Next() {
		var t Task
		if err := t.scan(rows); err != nil {
			return nil, fmt.Errorf("history: list: %w", err)
		}
		out = append(out, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history: list: %w", err)
	}
	return out, nil
}
